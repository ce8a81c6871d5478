// SPDX-License-Identifier: MIT OR Apache-2.0
//! A record that was released with a log, as a later version writes it, counts as absent (REC-3).

use retryproof_core::store::{FencedWrite, Inspect, Peeked, Purge};
use retryproof_core::{IdempotencyStore, OwnerId};

use super::{granted, labelled, pairs};
use crate::support::{LONG, Stranger, Table, completion, execute, hex, id, replay};

/// Inserts a kept record: one that a newer version of the library has released but keeps for its
/// log (REC-3). The interval `ends` sets the end of its lease, which makes no difference.
async fn keep(stranger: &mut Stranger, table: &Table, key: &str, owner: &str, ends: &str) {
    let sql = format!(
        "INSERT INTO \"{}\" (scope,key,state,owner,token,takeovers,expires_at,purge_bucket,fp,holder,log) \
         VALUES ({},{},2,{owner},4000000000000000,3,clock_timestamp()+interval '{ends}',\
         4000000000000000,decode('00','hex'),decode('00','hex'),decode('00ff','hex'))",
        table.name,
        hex("postgres.tests"),
        hex(key)
    );
    assert_eq!(stranger.run(sql).await, 1);
}

#[tokio::test]
async fn rec_3_a_kept_record_is_absent_for_every_call() {
    for (table, store, other) in pairs().await {
        let mut stranger = table.stranger().await;
        let released = "decode(repeat('00',16),'hex')";
        let former = OwnerId::new();
        let hexed = former.as_bytes().map(|byte| format!("{byte:02x}")).concat();
        let former_sql = format!("decode('{hexed}','hex')");
        let cases = [(released, "-1 day"), (released, "1 day"), (&former_sql, "1 day")];
        for (at, (owner, ends)) in cases.into_iter().enumerate() {
            let key = format!("k{at}");
            keep(&mut stranger, &table, &key, owner, ends).await;
            let id = id(&key);
            assert!(matches!(store.peek(&id).await, Ok(Peeked::Absent)));
            assert!(store.get(&id).await.expect("answered").is_none());
            let lost = [
                store.extend(&id, former, LONG).await,
                store.complete(&id, former, &completion("late")).await,
            ];
            for lost in lost {
                assert_eq!(lost.expect("answered"), FencedWrite::NotOwner);
            }
            let released = store.release(&id, former).await.expect("answered");
            assert_eq!(released, FencedWrite::AlreadyApplied);
            let untouched = format!(
                "SELECT count(*) FROM \"{}\" WHERE key={} AND state=2 AND log=decode('00ff','hex')",
                table.name,
                hex(&key)
            );
            assert_eq!(stranger.number(untouched).await, 1);
            // The next grant is a first attempt: it has a higher token, and the log is gone.
            let owner = OwnerId::new();
            let grant = granted(&other, &id, &labelled(owner, "holder")).await;
            assert!(!grant.took_over && grant.token.get() > 4_000_000_000_000_000, "{grant:?}");
            let logs = format!("SELECT count(log) FROM \"{}\"", table.name);
            assert_eq!(stranger.number(logs).await, 0);
            let done = other.complete(&id, owner, &completion("result")).await;
            assert_eq!(done.expect("completed"), FencedWrite::Applied);
            assert_eq!(replay(&store, &id).await, "result");
        }
    }
}

#[tokio::test]
async fn rec_3_a_kept_record_is_not_counted_and_is_purged_with_its_bucket() {
    for (table, store, _) in pairs().await {
        let mut stranger = table.stranger().await;
        execute(&store, &id("live"), "result").await;
        keep(&mut stranger, &table, "kept", "decode('01','hex')", "1 day").await;
        assert_eq!(store.stats().await.expect("counted").records, 1);
        assert_eq!(store.purge(10).await.expect("purged"), 0, "its bucket has not ended");
        let over = format!("UPDATE \"{}\" SET purge_bucket=1 WHERE state=2", table.name);
        assert_eq!(stranger.run(over).await, 1);
        assert_eq!(store.purge(10).await.expect("purged"), 1);
        assert_eq!(replay(&store, &id("live")).await, "result");
    }
}

#[tokio::test]
async fn rec_3_the_log_is_stored_without_compression() {
    let table = Table::new().await;
    let external = format!(
        "SELECT count(*) FROM pg_attribute WHERE attrelid='\"{}\"'::regclass AND attname='log' AND \
         attstorage='e' AND NOT attnotnull",
        table.name
    );
    assert_eq!(table.stranger().await.number(external).await, 1);
}
