// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes over the wire: one round trip for each call (ACQ-8), and what becomes of a line that
//! is cut or stalls.

mod plans;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite, Peeked};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};
use retryproof_testkit::wire::WireProxy;

use crate::support::{
    DAY, LONG, Stranger, Table, completion, execute, grant, id, pgbouncer, postgres, replay,
    request,
};

/// A proxy before the server of a URL, and the URL through it.
pub(crate) async fn proxied(url: &str) -> (WireProxy, String) {
    let (head, rest) = url.split_once('@').expect("a user");
    let (addr, database) = rest.split_once('/').expect("a database");
    let proxy = WireProxy::to(addr.parse().expect("an address")).await.expect("a proxy");
    let through = format!("{head}@{}/{database}", proxy.addr());
    (proxy, through)
}

async fn store(url: &str, table: &Table, pooler: Pooler) -> PostgresStore {
    let config = PostgresConfig::from_url(url).expect("a valid URL").with_table_name(&table.name);
    // One connection for calls and one for beats, so that all is prepared after one round of each.
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
            // The first round opens the lines and prepares the statements.
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
            assert!(matches!(
                store.acquire(&id, &request(stranger)).await,
                Ok(Acquired::Busy { .. })
            ));
            trips("in flight", 1);
            assert!(matches!(store.peek(&id).await, Ok(Peeked::Busy { .. })));
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
            // As by another process, that has not seen it complete.
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
        // Opens the lines and prepares the statements, all on the connection of the calls.
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
        // Whatever happens to it, no caller sees it as complete.
        for stranger in [OwnerId::new(), OwnerId::new()] {
            let before = proxy.flights();
            assert!(matches!(
                store.acquire(&known, &request(stranger)).await,
                Ok(Acquired::Busy { .. })
            ));
            assert_eq!(proxy.flights() - before, 1, "no longer known ({pooler:?})");
        }
    }
}

#[tokio::test]
async fn sto_5_a_line_that_was_cut_while_idle_is_replaced() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let store = store(&through, &table, Pooler::Session).await;
    for round in 0..5 {
        execute(&store, &id(&format!("k{round}")), "result").await;
        proxy.cut();
        assert_eq!(replay(&store, &id(&format!("k{round}"))).await, "result");
    }
    proxy.refuse(true);
    proxy.cut();
    let error =
        store.acquire(&id("k"), &request(OwnerId::new())).await.map(drop).expect_err("cut off");
    assert!(error.is_retryable(), "{error}");
    proxy.refuse(false);
    execute(&store, &id("k"), "result").await;
}

#[tokio::test]
async fn cmp_3_an_answer_that_was_lost_is_asked_for_again() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let store = Arc::new(store(&through, &table, Pooler::Session).await);
    for round in 0..10 {
        let (id, owner) = (id(&format!("k{round}")), OwnerId::new());
        let token = grant(&store, &id, owner).await.token;
        proxy.stall(true);
        let completing = {
            let (store, id) = (Arc::clone(&store), id.clone());
            tokio::spawn(async move { store.complete(&id, owner, &completion("result")).await })
        };
        tokio::time::sleep(Duration::from_millis(5)).await;
        proxy.cut();
        proxy.stall(false);
        let fenced = completing.await.expect("no panic").expect("a second line");
        assert!(matches!(fenced, FencedWrite::Applied | FencedWrite::AlreadyApplied), "{fenced:?}");
        assert_eq!(replay(&store, &id).await, "result");
        assert!(token.get() > 0);
    }
}

#[tokio::test]
async fn acq_11_a_call_dropped_in_the_middle_poisons_no_connection() {
    for (url, pooler) in [(postgres(), Pooler::Session), (pgbouncer(), Pooler::Transaction)] {
        let table = Table::new().await;
        let (proxy, through) = proxied(&url).await;
        let store = store(&through, &table, pooler).await;
        let done: Vec<_> = (0..20).map(|at| id(&format!("done {at}"))).collect();
        for (at, id) in done.iter().enumerate() {
            execute(&store, id, &format!("result {at}")).await;
        }
        for round in 0..100_u64 {
            let dropped = id(&format!("dropped {round}"));
            let soon = Duration::from_micros(round * 17 % 900);
            let owner = OwnerId::new();
            let _ = tokio::time::timeout(soon, store.acquire(&dropped, &request(owner))).await;
            let _ = tokio::time::timeout(soon, store.peek(&done[3])).await;
            // Each call gets its own answer.
            let at = usize::try_from(round).expect("small") % done.len();
            assert_eq!(replay(&store, &done[at]).await, format!("result {at}"));
        }
        // One that hangs is given up, and the next call has a line.
        proxy.stall(true);
        let hung = tokio::time::timeout(Duration::from_millis(50), store.peek(&done[0])).await;
        assert!(hung.is_err());
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.stall(false);
        assert_eq!(replay(&store, &done[0]).await, "result 0");
    }
}

#[tokio::test]
async fn sto_5_opening_a_connection_has_a_limit_too() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let config = PostgresConfig::from_url(&through).expect("a URL").with_table_name(&table.name);
    let config = config.with_call_timeout(Duration::from_secs(60));
    let store = PostgresStore::connect(config.with_connect_timeout(Duration::from_secs(1)))
        .await
        .expect("connected");
    // The open connections are gone, and a new one gets no answer.
    proxy.stall(true);
    proxy.cut();
    let started = tokio::time::Instant::now();
    let error = store.peek(&id("k")).await.expect_err("it hangs");
    assert!(error.is_retryable() && error.to_string().contains("in time"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[tokio::test]
async fn sto_5_a_server_that_hangs_is_given_up_in_time() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let config = PostgresConfig::from_url(&through).expect("a URL").with_table_name(&table.name);
    let store = PostgresStore::connect(config.with_call_timeout(Duration::from_secs(1)))
        .await
        .expect("connected");
    proxy.stall(true);
    let started = tokio::time::Instant::now();
    let error =
        store.acquire(&id("k"), &request(OwnerId::new())).await.map(drop).expect_err("it hangs");
    assert!(error.is_retryable() && error.to_string().contains("in time"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    proxy.stall(false);
    // With so little time a call may fail on a busy machine; that it serves again is what counts.
    let (id, owner) = (id("after"), OwnerId::new());
    let served = async {
        while let Err(error) = store.acquire(&id, &request(owner)).await {
            assert!(error.is_retryable(), "{error}");
        }
        while let Err(error) = store.complete(&id, owner, &completion("result")).await {
            assert!(error.is_retryable(), "{error}");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), served).await.expect("it serves again");
    let look = PostgresStore::connect(table.config()).await.expect("connected");
    assert_eq!(replay(&look, &id).await, "result");
}

#[tokio::test]
async fn sto_5_a_pooler_in_transaction_mode_is_found_out() {
    let table = Table::new().await;
    for (url, direct) in [(postgres(), "direct: true"), (pgbouncer(), "direct: false")] {
        let store = store(&url, &table, Pooler::Detect).await;
        assert!(format!("{store:?}").contains(direct), "{store:?}");
        execute(&store, &id(direct), "result").await;
    }
}

#[tokio::test]
async fn sto_5_a_pooler_that_was_denied_is_found_out_by_the_first_stray_statement() {
    let table = Table::new().await;
    let config =
        PostgresConfig::from_url(&pgbouncer()).expect("a URL").with_table_name(&table.name);
    // As when it hands out connections in turn, so that the question at the start gets no clear
    // answer.
    let connect = || async {
        PostgresStore::connect(config.clone().with_pooler(Pooler::Session))
            .await
            .expect("connected")
    };
    let stores = [Arc::new(connect().await), Arc::new(connect().await)];
    // Between two rounds it takes the connection that the pooler would give out next, and keeps it
    // for one.
    let mut stranger = Stranger::to(&pgbouncer()).await;
    let mut round = 0;
    while stores.iter().any(|store| format!("{store:?}").contains("direct: true")) {
        assert!(round < 200, "nothing goes astray");
        stranger.run(if round % 2 == 0 { "COMMIT" } else { "BEGIN; SELECT 1" }).await;
        let calls: Vec<_> = (0..24)
            .map(|at| {
                let (store, id) =
                    (Arc::clone(&stores[at % 2]), id(&format!("astray {round} {at}")));
                let owner = OwnerId::new();
                tokio::spawn(async move {
                    drop(store.acquire(&id, &request(owner)).await?);
                    // Those of many go together.
                    store.complete(&id, owner, &completion("result")).await
                })
            })
            .collect();
        for call in calls {
            // Whatever came of it.
            let _ = call.await.expect("no panic");
        }
        round += 1;
    }
    for (at, store) in stores.iter().enumerate() {
        execute(store, &id(&format!("found out {at}")), "result").await;
        assert_eq!(replay(store, &id(&format!("found out {at}"))).await, "result");
    }
}
