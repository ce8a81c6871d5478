// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fencing tokens, the clock, the purge, and how the rows are stored.

use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, HolderNote, Inspect, Purge,
};
use retryproof_core::{CodecId, IdempotencyStore, OwnerId, Payload};
use retryproof_postgres::{Pooler, PostgresStore};

use crate::support::{DAY, LONG, Table, completion, execute, grant, id, request};

#[tokio::test]
async fn acq_10_tokens_grow_over_releases_while_the_clock_stands_still() {
    let table = Table::new().await;
    let store = table.store().await;
    let id = id("k");
    let mut stranger = table.stranger().await;
    let mut last = 0;
    for round in 0..20 {
        let owner = OwnerId::new();
        let token = grant(&store, &id, owner).await.token.get();
        assert!(token > last, "{token} after {last}");
        last = token;
        assert_eq!(store.release(&id, owner).await.expect("released"), FencedWrite::Applied);
        if round % 5 == 0 {
            // Set the token as if the server's clock had been an hour ahead at the grant.
            last += 3_600_000_000;
            assert_eq!(
                stranger.run(format!("UPDATE \"{}\" SET token={last}", table.name)).await,
                1
            );
        }
    }
}

#[tokio::test]
async fn acq_10_a_residue_looks_deleted_and_is_purged_after_an_hour() {
    let table = Table::new().await;
    let store = table.store().await;
    let (id, owner) = (id("k"), OwnerId::new());
    grant(&store, &id, owner).await;
    assert_eq!(store.release(&id, owner).await.expect("released"), FencedWrite::Applied);
    assert!(store.get(&id).await.expect("looked").is_none());
    assert_eq!(store.stats().await.expect("counted").records, 0);
    assert_eq!(store.purge(10).await.expect("purged"), 0, "it keeps its token for an hour");
    let hour = format!("UPDATE \"{}\" SET purge_bucket=purge_bucket-3600000000", table.name);
    assert_eq!(table.stranger().await.run(hour).await, 1);
    assert_eq!(store.purge(10).await.expect("purged"), 1);
}

#[tokio::test]
async fn acq_7_time_is_the_servers() {
    let table = Table::new().await;
    let store = table.store().await;
    let mut stranger = table.stranger().await;
    let now = "SELECT (extract(epoch FROM clock_timestamp())*1000000)::bigint";
    let before = stranger.number(now).await;
    let token =
        i64::try_from(grant(&store, &id("k"), OwnerId::new()).await.token.get()).expect("a token");
    let after = stranger.number(now).await;
    assert!((before..=after).contains(&token), "{before} {token} {after}");
    // The server's clock decides when the lease and the ttl end.
    let ends =
        format!("SELECT (extract(epoch FROM expires_at)*1000000)::bigint FROM \"{}\"", table.name);
    let lease = i64::try_from(LONG.as_micros()).expect("a minute");
    let end = stranger.number(ends).await;
    assert!((before + lease..=after + lease).contains(&end), "{end}");
}

#[tokio::test]
async fn sto_4_a_large_purge_goes_in_batches_and_keeps_what_is_live() {
    let table = Table::new().await;
    let store = table.store().await;
    execute(&store, &id("live"), "result").await;
    // Insert 2,500 expired records in the form in which the store writes them.
    let sql = format!(
        "INSERT INTO \"{0}\" SELECT scope, decode(md5(n::text),'hex'), 1, owner, token, 0, \
         clock_timestamp()-interval '1 hour', 0, NULL, result FROM \"{0}\", generate_series(1,2500) AS n",
        table.name
    );
    assert_eq!(table.stranger().await.run(sql).await, 2_500);
    assert_eq!(store.purge(2_200).await.expect("purged"), 2_200);
    assert_eq!(store.purge(usize::MAX).await.expect("purged"), 300);
    assert_eq!(store.stats().await.expect("counted").records, 1);
}

#[tokio::test]
async fn sto_4_the_purge_finds_its_rows_by_the_index() {
    let table = Table::new().await;
    let name = &table.name;
    let mut stranger = table.stranger().await;
    stranger
        .run(format!(
            "INSERT INTO \"{name}\" SELECT 's'::bytea, decode(md5(n::text),'hex'), 1, \
             decode(md5('o'),'hex'), 1, 0, clock_timestamp()+interval '1 day', \
             (extract(epoch FROM clock_timestamp())*1000000)::bigint+n::bigint*1000000000, NULL, \
             NULL FROM generate_series(1,20000) AS n; ANALYZE \"{name}\""
        ))
        .await;
    let store = table.store().await;
    store.purge(10).await.expect("purged");
    drop(store);
    // The server publishes its counters only after the connection that caused them has ended.
    let scans = format!(
        "SELECT coalesce(idx_scan,0)::bigint FROM pg_stat_user_indexes WHERE indexrelname='{name}_purge'"
    );
    for _ in 0..100 {
        if stranger.number(scans.clone()).await > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the purge scans the table");
}

/// A batch of the purge succeeds even if a trigger makes it take longer than the call timeout.
#[tokio::test]
async fn sto_5_a_batch_of_the_purge_has_more_time_than_a_call() {
    let table = Table::new().await;
    let name = &table.name;
    let store =
        PostgresStore::connect(table.config().with_call_timeout(Duration::from_secs(1))).await;
    let store = store.expect("connected");
    let sql = format!(
        "INSERT INTO \"{name}\" SELECT 's'::bytea, decode(md5(n::text),'hex'), 1, \
         decode(md5('o'),'hex'), 1, 0, clock_timestamp()-interval '1 hour', 0, NULL, NULL \
         FROM generate_series(1,400) AS n; CREATE FUNCTION f_{name}() RETURNS trigger LANGUAGE \
         plpgsql AS $$ BEGIN PERFORM pg_sleep(0.005); RETURN OLD; END $$; CREATE TRIGGER slow \
         BEFORE DELETE ON \"{name}\" FOR EACH ROW EXECUTE FUNCTION f_{name}()"
    );
    table.stranger().await.run(sql).await;
    assert_eq!(store.purge(1_000).await.expect("in time"), 400);
    table
        .stranger()
        .await
        .run(format!("DROP TRIGGER slow ON \"{name}\"; DROP FUNCTION f_{name}()"))
        .await;
}

/// Index entries of deleted rows stay while a transaction might see the rows. A purge that read
/// them again for each batch would read 5 million entries here. A purge that continues where it
/// stopped reads only the entries of one bucket.
#[tokio::test]
async fn sto_4_a_purge_behind_an_old_snapshot_does_not_read_again_what_it_deleted() {
    const ROWS: usize = 100_000;
    // With `Session`, the store uses prepared statements. With `Transaction`, it sends the values
    // as literals.
    for pooler in [Pooler::Session, Pooler::Transaction] {
        let table = Table::new().await;
        let name = &table.name;
        let mut stranger = table.stranger().await;
        // Insert the rows that 1,000 grants per second for 100 seconds would have left a day ago.
        // The server has no statistics about them.
        stranger
            .run(format!(
                "ALTER TABLE \"{name}\" SET (autovacuum_enabled=off); INSERT INTO \"{name}\" \
                 SELECT 's'::bytea, decode(md5(n::text),'hex'), 1, decode(md5('o'),'hex'), 1, 0, \
                 clock_timestamp()-interval '1 hour', \
                 1000000000000000+n/10000*10000000::bigint, NULL, NULL FROM \
                 generate_series(1,{ROWS}) AS n"
            ))
            .await;
        let mut old = table.stranger().await;
        old.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
        assert_eq!(old.number(format!("SELECT count(*) FROM \"{name}\"")).await, 100_000);
        let store =
            PostgresStore::connect(table.config().with_pooler(pooler)).await.expect("connected");
        let began = tokio::time::Instant::now();
        let mut gone = 0;
        for _ in 0..ROWS / 1_000 {
            gone += store.purge(1_000).await.expect("purged");
        }
        println!("{pooler:?}: {:?} for each 1,000 rows behind a snapshot", began.elapsed() / 100);
        assert_eq!(gone + store.purge(1_000).await.expect("purged"), ROWS);
        drop(store);
        old.run("ROLLBACK").await;
        // The server publishes its counters only after the connection that caused them has ended.
        let of_index = format!("FROM pg_stat_user_indexes WHERE indexrelname='{name}_purge'");
        let mut entries = 0;
        for _ in 0..200 {
            entries = stranger.number(format!("SELECT idx_tup_read {of_index}")).await;
            if entries > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("{pooler:?}: {entries} index entries were read");
        assert!(
            (1..1_500_000).contains(&entries),
            "{entries} index entries were read ({pooler:?})"
        );
    }
}

#[tokio::test]
async fn run_1_beats_and_completions_stay_on_their_page() {
    let table = Table::new().await;
    let store = table.store().await;
    let payload = Payload::new(CodecId::BYTES, 1, &[7; 200]);
    const UNITS: i64 = 1_000;
    for at in 0..UNITS {
        let (id, owner) = (id(&format!("a key of thirty-six bytes, or so {at}")), OwnerId::new());
        let note = HolderNote::new(owner, LONG, None, "payments-7f9c5d:4711");
        let req = AcquireRequest::new(owner, LONG, DAY).with_holder(Some(note));
        assert!(matches!(store.acquire(&id, &req).await, Ok(Acquired::Granted(_))));
        assert_eq!(store.extend(&id, owner, LONG).await.expect("extended"), FencedWrite::Applied);
        let done = Completion::new(payload.envelope().clone(), DAY, None);
        assert_eq!(
            store.complete(&id, owner, &done).await.expect("completed"),
            FencedWrite::Applied
        );
    }
    drop(store);
    let mut stranger = table.stranger().await;
    let counted = |what: &str| {
        format!("SELECT {what} FROM pg_stat_user_tables WHERE relname='{}'", table.name)
    };
    let mut updates = 0;
    for _ in 0..200 {
        updates = stranger.number(counted("n_tup_upd")).await;
        if updates >= 2 * UNITS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(updates, 2 * UNITS);
    let hot = stranger.number(counted("n_tup_hot_upd")).await;
    println!("HOT: {hot} of {updates}");
    assert!(hot * 100 >= updates * 95, "{hot} of {updates} updates stayed on their page");
}

#[tokio::test]
async fn cmp_9_a_value_over_the_limit_is_too_large() {
    let table = Table::new().await;
    let store = retryproof_postgres::PostgresStore::connect(table.config().with_max_value(100))
        .await
        .expect("connected");
    assert_eq!(store.profile().max_value, 100);
    let (id, owner) = (id("k"), OwnerId::new());
    assert!(matches!(store.acquire(&id, &request(owner)).await, Ok(Acquired::Granted(_))));
    let error =
        store.complete(&id, owner, &completion(&"x".repeat(101))).await.expect_err("too large");
    assert_eq!(error.kind(), retryproof_core::ErrorKind::TooLarge, "{error}");
    assert_eq!(
        store.complete(&id, owner, &completion("tombstone")).await.expect("completed"),
        FencedWrite::Applied
    );
}
