// SPDX-License-Identifier: MIT OR Apache-2.0
//! Round trips counted on the wire (ACQ-8): one for each call, on a connection that has prepared the
//! statements.

pub(crate) mod plans;
mod writes;

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite, Peeked};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};
use retryproof_testkit::wire::WireProxy;

use crate::support::{
    DAY, LONG, Table, completion, execute, grant, id, pgbouncer, postgres, replay, request,
};

/// Starts a proxy in front of the server that `url` names. Returns the proxy and the URL through
/// the proxy.
pub(crate) async fn proxied(url: &str) -> (WireProxy, String) {
    let (head, rest) = url.split_once('@').expect("a user");
    let (addr, database) = rest.split_once('/').expect("a database");
    let proxy = WireProxy::to(addr.parse().expect("an address")).await.expect("a proxy");
    let through = format!("{head}@{}/{database}", proxy.addr());
    (proxy, through)
}

pub(crate) async fn store(url: &str, table: &Table, pooler: Pooler) -> PostgresStore {
    let config = PostgresConfig::from_url(url).expect("a valid URL").with_table_name(&table.name);
    // Use one connection for calls and one for heartbeats, so that one round of calls prepares
    // every statement.
    PostgresStore::connect(config.with_max_connections(2).with_pooler(pooler))
        .await
        .expect("connected")
}

#[tokio::test]
async fn acq_8_one_round_trip_for_each_call() {
    for (url, pooler) in [(postgres(), Pooler::Session), (pgbouncer(), Pooler::Transaction)] {
        let table = Table::new().await;
        let (proxy, through) = proxied(&url).await;
        let store = store(&through, &table, pooler).await;
        let brief = |owner| AcquireRequest::new(owner, Duration::from_millis(10), DAY);
        for round in 0..2 {
            // The first round opens the connections and prepares the statements.
            let counts = round > 0;
            let (id, other) = (id(&format!("k{round}")), id(&format!("other {round}")));
            let (owner, stranger) = (OwnerId::new(), OwnerId::new());
            let mut last = proxy.flights();
            let mut trips = |what: &str, most: u64| {
                let now = proxy.flights();
                let trips = now - last;
                last = now;
                if counts {
                    println!("{pooler:?}: {what}: {trips}");
                    assert_eq!(trips, most, "{what} ({pooler:?})");
                }
            };
            let token = grant(&store, &id, owner).await.token;
            trips("acquire", 1);
            assert!(matches!(store.acquire(&id, &request(stranger)).await, Ok(Acquired::Busy(_))));
            trips("in flight", 1);
            assert!(matches!(store.peek(&id).await, Ok(Peeked::Busy(_))));
            trips("peek", 1);
            store.wait_for_change(&id, token, Duration::ZERO).await.expect("looked");
            trips("wait_for_change", 1);
            assert_eq!(
                store.extend(&id, owner, LONG).await.expect("extended"),
                FencedWrite::Applied
            );
            trips("extend", 1);
            assert_eq!(
                store.extend(&id, stranger, LONG).await.expect("answered"),
                FencedWrite::NotOwner
            );
            trips("extend, lost", 1);
            assert_eq!(
                store.complete(&id, stranger, &completion("x")).await.expect("answered"),
                FencedWrite::NotOwner
            );
            trips("complete, lost", 2);
            assert_eq!(
                store.complete(&id, owner, &completion("x")).await.expect("completed"),
                FencedWrite::Applied
            );
            trips("complete", 1);
            assert_eq!(
                store.complete(&id, owner, &completion("x")).await.expect("answered"),
                FencedWrite::AlreadyApplied
            );
            trips("complete, again", 2);
            replay(&store, &id).await;
            trips("replay, known", 1);
            // A new store represents another process, which has not seen the record complete.
            let fresh = self::store(&url, &table, pooler).await;
            execute(&fresh, &self::id(&format!("foreign {round}")), "x").await;
            replay(&store, &self::id(&format!("foreign {round}"))).await;
            trips("replay, first contact", 1);
            grant(&store, &other, owner).await;
            trips("acquire", 1);
            assert_eq!(store.release(&other, owner).await.expect("released"), FencedWrite::Applied);
            trips("release", 1);
            assert_eq!(
                store.release(&other, owner).await.expect("answered"),
                FencedWrite::AlreadyApplied
            );
            trips("release, again", 2);
            assert!(matches!(store.acquire(&other, &brief(owner)).await, Ok(Acquired::Granted(_))));
            trips("acquire after a release", 1);
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(grant(&store, &other, stranger).await.took_over);
            trips("takeover", 1);
        }
    }
}

#[tokio::test]
async fn acq_8_a_wrong_guess_that_a_key_is_known_is_made_once() {
    for (url, pooler) in [(postgres(), Pooler::Session), (pgbouncer(), Pooler::Transaction)] {
        let table = Table::new().await;
        let (proxy, through) = proxied(&url).await;
        let store = store(&through, &table, pooler).await;
        // These calls open the connections and prepare all statements on the connection for calls.
        execute(&store, &id("first"), "x").await;
        replay(&store, &id("first")).await;
        assert!(matches!(
            store.acquire(&id("held"), &request(OwnerId::new())).await,
            Ok(Acquired::Granted(_))
        ));
        let known = id("known");
        execute(&store, &known, "x").await;
        assert_eq!(replay(&store, &known).await, "x");
        assert_eq!(table.stranger().await.run(format!("DELETE FROM \"{}\"", table.name)).await, 3);
        let before = proxy.flights();
        grant(&store, &known, OwnerId::new()).await;
        assert_eq!(proxy.flights() - before, 2, "known, but gone ({pooler:?})");
        // From now on, the store no longer remembers the record as complete.
        for stranger in [OwnerId::new(), OwnerId::new()] {
            let before = proxy.flights();
            assert!(matches!(
                store.acquire(&known, &request(stranger)).await,
                Ok(Acquired::Busy(_))
            ));
            assert_eq!(proxy.flights() - before, 1, "no longer known ({pooler:?})");
        }
    }
}

/// A process that has seen a result reads it, and does not try to acquire the key again.
#[tokio::test]
async fn acq_8_a_result_that_the_process_has_seen_is_only_read() {
    let table = Table::new().await;
    let (first, second) = (table.store().await, table.store().await);
    execute(&first, &id("k"), "x").await;
    assert_eq!(replay(&second, &id("k")).await, "x");
    let mut stranger = table.stranger().await;
    let drop_grant = format!(
        "DO $$DECLARE f regprocedure; BEGIN SELECT oid INTO STRICT f FROM pg_proc WHERE \
         proname='{}_grant_1'; EXECUTE 'DROP FUNCTION '||f; END$$",
        table.name
    );
    stranger.run(drop_grant).await;
    assert_eq!(replay(&second, &id("k")).await, "x");
}

/// The ttl of a result may end while the row is read, so an acquire that finds no value tries again
/// before it reports a damaged record.
#[tokio::test]
async fn cmp_6_acq_8_a_value_that_is_missing_is_looked_for_again() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&postgres()).await;
    let store = store(&through, &table, Pooler::Session).await;
    execute(&table.store().await, &id("k"), "x").await;
    table.stranger().await.run(format!("UPDATE \"{}\" SET result=NULL", table.name)).await;
    // This call opens the connection, and prepares the statement.
    grant(&store, &id("other"), OwnerId::new()).await;
    let before = proxy.flights();
    let error = store.acquire(&id("k"), &request(OwnerId::new())).await.map(drop);
    assert_eq!(error.expect_err("damaged").kind(), ErrorKind::Corrupt);
    assert!(proxy.flights() - before >= 4, "{} round trips", proxy.flights() - before);
}
