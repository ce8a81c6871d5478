// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything around the calls: the profile, waiting, inspection, the diagnosis, a pooler, plans,
//! and the table of keys.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, FencedWrite, Inspect as _, Purge as _, Severity,
};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore, SqlDialect};
use sqlx_core::row::Row as _;
use tokio::time::Instant;

use super::place::Place;
use crate::round_trips::plans::gone;
use crate::support::{
    DAY, LONG, Stranger, Table, completion, execute, grant, hex, id, pgbouncer, replay, request,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_9_acq_4_waiters_poll_as_the_profile_says() {
    let place = Place::new("").await;
    let connect = || PostgresStore::connect(place.config());
    let (holder, waiter) =
        (connect().await.expect("connected"), connect().await.expect("connected"));
    let profile = waiter.profile();
    assert_eq!((profile.max_poll, profile.max_round_trips), (Duration::from_millis(60), 1));
    assert!(format!("{waiter:?}").contains("listening: false"), "{waiter:?}");
    let mut lates = Vec::new();
    for round in 0..5 {
        let (id, owner) = (id(&format!("waited for {round}")), OwnerId::new());
        let token = grant(&holder, &id, owner).await.token;
        let waited = async {
            waiter.wait_for_change(&id, token, Duration::from_secs(30)).await.expect("waited");
            Instant::now()
        };
        let completed = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let done = completion("result");
            assert_eq!(holder.complete(&id, owner, &done).await.expect("ok"), FencedWrite::Applied);
            Instant::now()
        };
        let (waited, completed) = tokio::join!(waited, completed);
        let late = waited.saturating_duration_since(completed);
        // Without a poll, the waiter would wait for 30 s.
        assert!(late < Duration::from_secs(5), "{late:?}");
        lates.push(late);
        assert_eq!(replay(&waiter, &id).await, "result");
    }
    // A busy machine may delay one of them for longer.
    lates.sort_unstable();
    assert!(lates[2] < profile.max_poll + Duration::from_millis(700), "{lates:?}");
}

#[tokio::test]
async fn sto_9_ops_5_a_diagnosis_says_what_it_did_not_check() {
    // PostgreSQL itself, and a user who may read its settings: the diagnosis is complete.
    let table = Table::new().await;
    let config = table.config().with_dialect(SqlDialect::Plain);
    execute(&PostgresStore::connect(config.clone()).await.expect("connected"), &id("k"), "v").await;
    assert_eq!(config.diagnose().await.expect("diagnosed"), []);
    // A server that does not report them.
    let place = Place::new("").await;
    let found = place.config().diagnose().await.expect("diagnosed");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].id, found[0].severity), ("dialect", Severity::Note));
    let tried = place.tap.take_forbidden();
    assert!(!tried.is_empty(), "the diagnosis tries to read PostgreSQL's settings");
    // Missing tables.
    let absent = Place::absent("").await;
    let found = absent.config().diagnose().await.expect("diagnosed");
    assert!(found.iter().any(|finding| finding.id == "schema"), "{found:?}");
    absent.tap.take_forbidden();
}

#[tokio::test]
async fn sto_9_ops_5_no_purge_for_a_day_is_named() {
    let place = Place::new("").await;
    let store = PostgresStore::connect(place.config()).await.expect("connected");
    execute(&store, &id("k"), "v").await;
    let old = "expires_at=clock_timestamp()-interval '2 days',purge_bucket=0";
    let sql = format!("UPDATE \"{}\" SET {old}", place.table.name);
    place.table.stranger().await.run(sql).await;
    let found = place.config().diagnose().await.expect("diagnosed");
    assert!(found.iter().any(|finding| finding.id == "purge"), "{found:?}");
    place.tap.take_forbidden();
}

#[tokio::test]
async fn sto_9_stats_count_records_and_their_bytes() {
    let place = Place::new("").await;
    let store = PostgresStore::connect(place.config()).await.expect("connected");
    execute(&store, &id("done"), &"x".repeat(5_000)).await;
    grant(&store, &id("held"), OwnerId::new()).await;
    let owner = OwnerId::new();
    grant(&store, &id("released"), owner).await;
    let released = store.release(&id("released"), owner).await.expect("released");
    assert_eq!(released, FencedWrite::Applied);
    let stats = store.stats().await.expect("counted");
    assert_eq!((stats.records, stats.in_progress), (2, 1));
    assert!((5_000..6_000).contains(&stats.bytes), "{stats:?}");
}

/// A pooler in transaction mode: each statement carries its own limit for locked rows.
#[tokio::test]
async fn sto_9_behind_a_pooler_a_locked_row_is_busy_in_time() {
    let table = Table::absent(crate::support::postgres());
    let config = PostgresConfig::from_url(&format!("{}?dialect=plain", pgbouncer()));
    let config = config.expect("a valid URL").with_table_name(&table.name);
    config.migrate().await.expect("migrated");
    // The store detects the pooler, as in the other dialect.
    let store = PostgresStore::connect(config).await.expect("connected");
    assert!(format!("{store:?}").contains("direct: false"), "{store:?}");
    // The checks of the start left no setting on a connection that other clients use next.
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = Stranger::to(&pgbouncer()).await;
        client.run("BEGIN").await;
        let setting = client.row("SELECT current_setting('lock_timeout')").await;
        assert_eq!(setting.try_get::<String, _>(0).expect("a text"), "0");
        clients.push(client);
    }
    drop(clients);
    execute(&store, &id("k"), "result").await;
    assert_eq!(replay(&store, &id("k")).await, "result");
    let brief = AcquireRequest::new(OwnerId::new(), Duration::from_millis(10), DAY);
    assert!(matches!(store.acquire(&id("locked"), &brief).await, Ok(Acquired::Granted(_))));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut other = table.stranger().await;
    let lock = format!("SELECT 1 FROM \"{}\" WHERE key={} FOR UPDATE", table.name, hex("locked"));
    other.run(format!("BEGIN; {lock}")).await;
    let began = Instant::now();
    assert!(matches!(
        store.acquire(&id("locked"), &request(OwnerId::new())).await,
        Ok(Acquired::Busy(_))
    ));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    other.run("ROLLBACK").await;
    assert!(grant(&store, &id("locked"), OwnerId::new()).await.took_over);
}

/// On PostgreSQL, the calls find their records by the index, as in the other dialect.
#[tokio::test]
async fn sto_9_acq_8_a_plan_of_an_empty_table_does_not_read_the_full_one() {
    const ROWS: i64 = 30_000;
    let application = format!("&application_name=plain_{}", OwnerId::new().as_bytes()[0]);
    let place = Place::new(&application).await;
    let mut admin = place.table.stranger().await;
    let name = &place.table.name;
    let fill = |keys: &str, count: i64| {
        format!(
            "INSERT INTO \"{name}\" SELECT 's'::bytea, decode(md5('{keys}'||n),'hex'), 1, \
             decode(md5('o'),'hex'), 1, 0, clock_timestamp()+interval '1 day', 4000000000000000, \
             NULL, NULL FROM generate_series(1,{count}) AS n"
        )
    };
    admin.run(format!("ALTER TABLE \"{name}\" SET (autovacuum_enabled=off)")).await;
    admin.run(fill("few", 20)).await;
    admin.run(format!("VACUUM (ANALYZE) \"{name}\"")).await;
    let config = place.config().with_max_connections(2);
    let store = PostgresStore::connect(config).await.expect("connected");
    for round in 0..15 {
        if round == 12 {
            admin.run(fill("many", ROWS)).await;
        }
        let (first, second) = (OwnerId::new(), OwnerId::new());
        let key = id(&format!("round {round}"));
        let brief = AcquireRequest::new(first, Duration::from_millis(10), Duration::from_millis(1));
        assert!(matches!(store.acquire(&key, &brief).await, Ok(Acquired::Granted(_))));
        tokio::time::sleep(Duration::from_millis(15)).await;
        let token = grant(&store, &key, second).await.token;
        assert!(matches!(store.acquire(&key, &request(first)).await, Ok(Acquired::Busy(_))));
        store.wait_for_change(&key, token, Duration::ZERO).await.expect("looked");
        let extended = store.extend(&key, second, LONG).await.expect("extended");
        let completed = store.complete(&key, second, &completion("x")).await.expect("completed");
        assert_eq!((extended, completed), (FencedWrite::Applied, FencedWrite::Applied));
        assert_eq!(replay(&store, &key).await, "x");
        let dead = id(&format!("dead {round}"));
        assert!(matches!(store.acquire(&dead, &brief).await, Ok(Acquired::Granted(_))));
        tokio::time::sleep(Duration::from_millis(15)).await;
        assert_eq!(store.purge(100).await.expect("purged"), 1);
        store.scan(None, 10).await.expect("scanned");
    }
    drop(store);
    gone(&mut admin, &application["&application_name=".len()..]).await;
    let read = format!("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname='{name}'");
    let read = admin.number(read).await;
    assert!(read < ROWS, "{read} rows were read in scans of the table");
}

/// A purge meets a row that an open transaction has locked.
#[tokio::test]
async fn sto_9_sto_4_a_locked_row_ends_a_purge_with_an_error_and_no_harm() {
    let place = Place::new("").await;
    let store = Arc::new(PostgresStore::connect(place.config()).await.expect("connected"));
    for key in ["locked", "free"] {
        let brief = Duration::from_millis(1);
        let brief = AcquireRequest::new(OwnerId::new(), 10 * brief, brief);
        assert!(matches!(store.acquire(&id(key), &brief).await, Ok(Acquired::Granted(_))));
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut other = place.table.stranger().await;
    let name = &place.table.name;
    let lock = format!("SELECT 1 FROM \"{name}\" WHERE key={} FOR UPDATE", hex("locked"));
    other.run(format!("BEGIN; {lock}")).await;
    let error = store.purge(10).await.expect_err("the row is locked");
    assert!(error.is_retryable(), "{error}");
    other.run("ROLLBACK").await;
    assert_eq!(store.purge(10).await.expect("purged"), 2);
}

#[cfg(feature = "seal")]
#[tokio::test]
async fn sto_9_seal_3_a_table_of_keys_keeps_its_promises() {
    use retryproof_core::ErrorKind;
    use retryproof_postgres::PostgresKeyTable;

    // The database is shared, so the table is in a schema of this test.
    let place = Place::absent("").await;
    let mut admin = place.table.stranger().await;
    let schema = &place.table.name;
    admin.run(format!("CREATE SCHEMA {schema} AUTHORIZATION retryproof_plain")).await;
    let url = super::place::as_role(&place.table.url, &format!("&options[search_path]={schema}"));
    let config = PostgresConfig::from_url(&format!("{url}&dialect=plain")).expect("a valid URL");
    let config = super::place::patient(config).with_pooler(Pooler::Session);
    let missing = PostgresKeyTable::connect(config.clone()).await.expect_err("no table");
    assert_eq!(missing.kind(), ErrorKind::Schema, "{missing}");
    let at_once = [0; 4].map(|_| {
        let config = config.clone();
        tokio::spawn(async move { PostgresKeyTable::migrate(&config).await })
    });
    for migrated in at_once {
        migrated.await.expect("no panic").expect("migrated");
    }
    crate::table::judged(&PostgresKeyTable::connect(config).await.expect("connected")).await;
    admin.run(format!("DROP SCHEMA {schema} CASCADE")).await;
}
