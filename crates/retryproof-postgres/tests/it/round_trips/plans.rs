// SPDX-License-Identifier: MIT OR Apache-2.0
//! A statement that was planned while the table was nearly empty uses the index when the table is
//! full.

use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Join, Peeked, Purge, TxPort,
};
use retryproof_core::{Error, IdempotencyStore, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};
use sqlx_core::connection::Connection as _;
use sqlx_postgres::PgConnection;
use tokio::task::JoinSet;

use crate::support::{DAY, LONG, Stranger, Table, completion, grant, id, replay, request};

/// The number of rows in the full table. A plan that scans the table reads all of them for each
/// call.
const ROWS: i64 = 30_000;

/// Runs every statement of the store once: grants, takeovers, looks, heartbeats, completions
/// (alone, shared and joined), releases and a purge.
async fn every_statement(
    store: &std::sync::Arc<PostgresStore>,
    app: &mut PgConnection,
    name: &str,
) {
    let at_once = |owner| AcquireRequest::new(owner, Duration::from_millis(10), DAY);
    let (first, second) = (OwnerId::new(), OwnerId::new());
    let taken = id(&format!("{name} taken"));
    assert!(matches!(store.acquire(&taken, &at_once(first)).await, Ok(Acquired::Granted(_))));
    tokio::time::sleep(Duration::from_millis(15)).await;
    let token = grant(store, &taken, second).await.token;
    assert!(matches!(store.acquire(&taken, &request(first)).await, Ok(Acquired::Busy(_))));
    assert!(matches!(store.peek(&taken).await, Ok(Peeked::Busy(_))));
    store.wait_for_change(&taken, token, Duration::ZERO).await.expect("looked");
    assert_eq!(store.extend(&taken, second, LONG).await.expect("extended"), FencedWrite::Applied);
    assert_eq!(store.release(&taken, second).await.expect("released"), FencedWrite::Applied);

    let joined = id(&format!("{name} joined"));
    grant(store, &joined, first).await;
    complete_in(store, app, &joined, first).await.expect("joined");
    assert_eq!(replay(store, &joined).await, "joined");

    // Complete so many records at the same time that some completions share a statement.
    let mut all = JoinSet::new();
    for at in 0..12 {
        let (store, id) = (std::sync::Arc::clone(store), id(&format!("{name} {at}")));
        all.spawn(async move {
            let owner = OwnerId::new();
            grant(&store, &id, owner).await;
            assert_eq!(
                store.complete(&id, owner, &brief()).await.expect("completed"),
                FencedWrite::Applied
            );
        });
    }
    all.join_all().await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(store.purge(100).await.expect("purged") > 0);
}

async fn complete_in(
    store: &PostgresStore,
    app: &mut PgConnection,
    id: &retryproof_core::Identity,
    owner: OwnerId,
) -> Result<(), Error> {
    let done = completion("joined");
    let statement = store.completion(id, &owner, &done);
    let mut tx = app.begin().await.expect("a transaction");
    assert_eq!(tx.run_statement(statement.sql, &statement.params).await?, 1);
    tx.commit().await.expect("committed");
    Ok(())
}

/// Returns a completion with a ttl that ends immediately.
fn brief() -> Completion {
    Completion::new(completion("brief").value, Duration::from_millis(1), None)
}

#[tokio::test]
async fn acq_8_a_plan_of_an_empty_table_does_not_read_the_full_one() {
    // `Session` uses prepared statements. `Transaction` sends the values as literals.
    for pooler in [Pooler::Session, Pooler::Transaction] {
        let table = Table::new().await;
        let name = &table.name;
        let fill = |keys: &str, count: i64| {
            format!(
                "INSERT INTO \"{name}\" SELECT 's'::bytea, decode(md5('{keys}'||n),'hex'), 1, \
                 decode(md5('o'),'hex'), 1, 0, clock_timestamp()+interval '1 day', \
                 4000000000000000, NULL, NULL FROM generate_series(1,{count}) AS n"
            )
        };
        let mut stranger = table.stranger().await;
        // Let the server collect statistics of the small table. Without autovacuum, it does not
        // update them later.
        stranger.run(format!("ALTER TABLE \"{name}\" SET (autovacuum_enabled=off)")).await;
        stranger.run(fill("few", 20)).await;
        stranger.run(format!("VACUUM (ANALYZE) \"{name}\"")).await;

        let url = format!("{}?application_name=plans_{name}", table.url);
        let config = PostgresConfig::from_url(&url).expect("a URL").with_table_name(name);
        // Use few connections, so that every connection has planned every statement.
        let config = config.with_pooler(pooler).with_max_connections(2);
        let store = std::sync::Arc::new(PostgresStore::connect(config).await.expect("connected"));
        let mut app = PgConnection::connect(&url).await.expect("a connection of the application's");
        for round in 0..12 {
            every_statement(&store, &mut app, &format!("few {round}")).await;
        }
        stranger.run(fill("many", ROWS)).await;
        for round in 0..3 {
            every_statement(&store, &mut app, &format!("many {round}")).await;
        }
        drop(store);
        app.close().await.expect("closed");
        gone(&mut stranger, &format!("plans_{name}")).await;
        let read = format!("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname='{name}'");
        let read = stranger.number(read).await;
        assert!(read < ROWS, "{read} rows were read in scans of the table ({pooler:?})");
    }
}

/// Waits until the application's connections have ended, because only then does the server publish
/// their counters.
pub(crate) async fn gone(stranger: &mut Stranger, application: &str) {
    let left =
        format!("SELECT count(*) FROM pg_stat_activity WHERE application_name='{application}'");
    for _ in 0..400 {
        if stranger.number(left.clone()).await == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("connections of {application} are still open");
}
