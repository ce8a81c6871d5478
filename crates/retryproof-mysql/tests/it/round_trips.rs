// SPDX-License-Identifier: MIT OR Apache-2.0
//! Round trips counted on the wire (ACQ-8): one for each operation, on a connection that has
//! prepared the statements.

mod writes;

use std::net::SocketAddr;
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, FencedWrite, Join as _, OwnedTx as _, Peeked, TxPort as _, TxSource,
};
use retryproof_core::{FencingToken, IdempotencyStore, Identity, OwnerId};
use retryproof_mysql::{MySqlPool, MysqlDialect, MysqlStore};
use retryproof_testkit::wire::WireProxy;

use sqlx::mysql::MySqlPoolOptions;

use crate::support::{DAY, LONG, Table, completion, execute, grant, id, replay, request, url};

const SHORT: Duration = Duration::from_millis(10);

/// Returns the address of the server.
pub(crate) fn server() -> SocketAddr {
    let url = url();
    let (_, place) = url.split_once('@').expect("a user in the URL");
    place.split_once('/').expect("a database in the URL").0.parse().expect("a numeric address")
}

/// Returns the server's URL, through the proxy.
pub(crate) fn through(proxy: &WireProxy) -> String {
    url().replace(&server().to_string(), &proxy.addr().to_string())
}

struct Counted {
    table: Table,
    proxy: WireProxy,
    store: MysqlStore,
}

impl Counted {
    async fn new(returning: bool) -> Self {
        let table = Table::new().await;
        let proxy = WireProxy::to(server()).await.expect("a proxy");
        let config = table.config_at(&through(&proxy)).with_returning(returning);
        let store = MysqlStore::connect(config).await.expect("the store connects");
        let counted = Self { table, proxy, store };
        counted.warm(&counted.store).await;
        counted
    }

    /// Prepares every statement on the store's connection.
    async fn warm(&self, store: &MysqlStore) {
        let (done, gone) = (id("warm"), id("warm and gone"));
        execute(store, &done, "warm").await;
        replay(store, &done).await;
        let owner = OwnerId::new();
        grant(store, &gone, owner).await;
        assert!(matches!(
            store.acquire(&gone, &request(OwnerId::new())).await,
            Ok(Acquired::Busy(_))
        ));
        assert_eq!(store.release(&gone, owner).await.expect("released"), FencedWrite::Applied);
        let token = grant(store, &gone, owner).await.token;
        assert!(matches!(store.peek(&gone).await, Ok(Peeked::Busy(_))));
        store
            .wait_for_change(&gone, FencingToken::new(token.get() - 1), LONG)
            .await
            .expect("nothing to wait for");
        assert_eq!(store.extend(&gone, owner, LONG).await.expect("extended"), FencedWrite::Applied);
        assert_eq!(store.release(&gone, owner).await.expect("released"), FencedWrite::Applied);
    }

    /// Runs `call`, and counts its round trips.
    async fn trips<T>(&self, call: impl Future<Output = T>) -> (u64, T) {
        let before = self.proxy.flights();
        let answer = call.await;
        (self.proxy.flights() - before, answer)
    }

    async fn acquire(&self, id: &Identity) -> (u64, Acquired) {
        let (trips, answer) = self.trips(self.store.acquire(id, &request(OwnerId::new()))).await;
        (trips, answer.expect("answered"))
    }

    /// Creates a record whose lease has ended. If `met` is set, the store has seen it busy before.
    async fn dead(&self, key: &str, met: bool) -> Identity {
        let id = id(key);
        let owner = OwnerId::new();
        let lease = if met { LONG } else { SHORT };
        let req = AcquireRequest::new(owner, lease, DAY);
        assert!(matches!(self.store.acquire(&id, &req).await, Ok(Acquired::Granted(_))));
        if met {
            assert!(matches!(self.acquire(&id).await, (1, Acquired::Busy(_))));
            assert_eq!(
                self.store.extend(&id, owner, SHORT).await.expect("extended"),
                FencedWrite::Applied
            );
        }
        while !matches!(self.store.peek(&id).await, Ok(Peeked::Absent)) {
            tokio::time::sleep(SHORT).await;
        }
        id
    }
}

#[tokio::test]
async fn acq_8_every_operation_is_one_round_trip() {
    let counted = Counted::new(true).await;
    let store = &counted.store;
    for round in 0..20 {
        let key = id(&format!("k{round}"));
        let owner = OwnerId::new();
        let (trips, granted) = counted.trips(store.acquire(&key, &request(owner))).await;
        assert!(matches!(granted, Ok(Acquired::Granted(_))));
        assert_eq!(trips, 1, "acquire");
        let (trips, busy) = counted.acquire(&key).await;
        assert!(matches!(busy, Acquired::Busy(_)));
        assert_eq!(trips, 1, "in flight");
        assert_eq!(counted.trips(store.peek(&key)).await.0, 1, "peek");
        assert_eq!(counted.trips(store.extend(&key, owner, LONG)).await.0, 1, "extend");
        let (trips, done) = counted.trips(store.complete(&key, owner, &completion("result"))).await;
        assert_eq!((trips, done.expect("completed")), (1, FencedWrite::Applied), "complete");
        let (trips, replayed) = counted.acquire(&key).await;
        assert!(matches!(replayed, Acquired::Complete(_)));
        assert_eq!(trips, 1, "replay of a known key");

        for (met, most) in [(true, 1), (false, 2)] {
            let dead = counted.dead(&format!("dead{round} {met}"), met).await;
            let (trips, taken) = counted.acquire(&dead).await;
            assert!(matches!(taken, Acquired::Granted(grant) if grant.took_over));
            assert_eq!(trips, most, "takeover of a record that was seen busy: {met}");
        }

        let released = id(&format!("released{round}"));
        grant(store, &released, owner).await;
        let (trips, gone) = counted.trips(store.release(&released, owner)).await;
        assert_eq!((trips, gone.expect("released")), (1, FencedWrite::Applied), "release");
        let (trips, again) = counted.acquire(&released).await;
        assert!(matches!(again, Acquired::Granted(grant) if !grant.took_over));
        assert_eq!(trips, 1, "acquire after a release");
    }
    assert_eq!(counted.proxy.lines(), 1, "one caller at a time needs one connection");

    let (renewed, owner) = (id("renewed"), OwnerId::new());
    let first = grant(store, &renewed, owner).await;
    let (trips, again) = counted.trips(store.acquire(&renewed, &request(owner))).await;
    assert!(
        matches!(again, Ok(Acquired::Granted(grant)) if grant.token == first.token && !grant.took_over)
    );
    assert_eq!(trips, 2, "an acquire whose answer was lost, repeated by its owner");

    // `other` represents another process. It replays a record in one round trip, although it reads
    // the record for the first time.
    let config = counted.table.config_at(&through(&counted.proxy));
    let other = MysqlStore::connect(config).await.expect("the store connects");
    let fresh = id("only here");
    grant(&other, &fresh, OwnerId::new()).await;
    let (trips, replayed) = counted.trips(other.acquire(&id("k0"), &request(OwnerId::new()))).await;
    assert!(matches!(replayed, Ok(Acquired::Complete(_))));
    assert_eq!(trips, 1, "replay at first contact");
    // The other process acquires a key that this process has released.
    let mut trips = Vec::new();
    for round in 0..2 {
        let released = id(&format!("released elsewhere{round}"));
        let owner = OwnerId::new();
        grant(store, &released, owner).await;
        assert_eq!(store.release(&released, owner).await.expect("released"), FencedWrite::Applied);
        let (took, granted) = counted.trips(other.acquire(&released, &request(owner))).await;
        assert!(matches!(granted, Ok(Acquired::Granted(grant)) if !grant.took_over));
        trips.push(took);
    }
    // The first acquire also prepares the statement on its connection.
    assert_eq!(trips[1], 2, "acquire after a release in another process");
}

/// Checks the cost that the docs state for servers whose INSERT cannot return rows.
#[tokio::test]
async fn acq_8_without_returning_a_duplicate_costs_two() {
    let counted = Counted::new(false).await;
    let store = &counted.store;
    let (key, owner) = (id("k"), OwnerId::new());
    let (trips, granted) = counted.trips(store.acquire(&key, &request(owner))).await;
    assert!(matches!(granted, Ok(Acquired::Granted(_))));
    assert_eq!(trips, 1, "acquire");
    assert_eq!(counted.acquire(&key).await.0, 2, "in flight");
    assert_eq!(
        counted.trips(store.complete(&key, owner, &completion("result"))).await.0,
        1,
        "complete"
    );
    assert_eq!(counted.acquire(&key).await.0, 1, "replay of a known key");
    let dead = counted.dead("dead", false).await;
    let (trips, taken) = counted.acquire(&dead).await;
    assert!(matches!(taken, Acquired::Granted(grant) if grant.took_over));
    assert_eq!(trips, 1, "takeover");
}

/// CMP-7: a joined transaction costs three round trips in addition to the action's statements, and
/// a fourth if the program began the transaction.
#[tokio::test]
async fn acq_8_cmp_7_a_joined_transaction_costs_three_round_trips() {
    let counted = Counted::new(true).await;
    let (options, url) = (MySqlPoolOptions::new().max_connections(1), through(&counted.proxy));
    let pool = options.test_before_acquire(false).connect(&url).await.expect("a pool");
    let (owner, done) = (OwnerId::new(), completion("joined"));
    for round in 0..3 {
        let id = id(&format!("joined{round}"));
        grant(&counted.store, &id, owner).await;
        let statement = counted.store.completion(&id, &owner, &done);
        let source: &MySqlPool = &pool;
        let (begun, tx) = counted.trips(TxSource::<MysqlDialect>::begin(source)).await;
        let mut tx = tx.expect("begun");
        let (written, rows) =
            counted.trips(tx.run_statement(statement.sql, &statement.params)).await;
        assert_eq!(rows.expect("written"), 1);
        let (committed, answer) = counted.trips(tx.commit_tx()).await;
        answer.expect("committed");
        // The first transaction also prepares the statement on its connection. The pool's ping may
        // be sent together with the commit.
        if round > 0 {
            assert_eq!((begun, written), (1, 1));
            assert!((1..=2).contains(&committed), "{committed}");
        }
        // The pool pings each returned connection, so start counting only after that ping.
        let returned = async {
            while pool.num_idle() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), returned)
            .await
            .expect("the connection comes back");
    }
}
