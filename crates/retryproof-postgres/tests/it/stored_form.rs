// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a row contains besides the record itself: the note about the holder and the count of
//! takeovers (REC-2), and the space for a log (REC-3). The tests use a direct connection, and
//! literals through a pooler.

mod kept;
mod locked;

use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, FencedWrite, Grant, HolderNote, Inspect, Peeked, RecordSummary,
    TraceContext,
};
use retryproof_core::{IdempotencyStore, Identity, OwnerId};
use retryproof_postgres::{PostgresConfig, PostgresStore};

use crate::support::{
    DAY, LONG, Table, completion, execute, hex, id, pgbouncer, postgres, request,
};

const MS: Duration = Duration::from_millis(1);
const TRACE: TraceContext = TraceContext { trace_id: [7; 16], span_id: [9; 8], sampled: true };

/// Creates two tables, each with a pair of stores. The second store of a pair acts as another
/// process, which has not seen the table's records. One pair is connected directly, the other
/// through a pooler.
async fn pairs() -> Vec<(Table, PostgresStore, PostgresStore)> {
    let mut pairs = Vec::new();
    for url in [postgres(), pgbouncer()] {
        let table = Table::new().await;
        let connect = || async {
            let config = PostgresConfig::from_url(&url).expect("a valid URL");
            PostgresStore::connect(config.with_table_name(&table.name)).await.expect("connected")
        };
        let (store, other) = (connect().await, connect().await);
        pairs.push((table, store, other));
    }
    pairs
}

fn note(owner: OwnerId, label: &str) -> HolderNote {
    HolderNote::new(owner, LONG, Some(TRACE), label)
}

/// Returns a request with a note that has this label.
fn labelled(owner: OwnerId, label: &str) -> AcquireRequest {
    request(owner).with_holder(Some(note(owner, label)))
}

/// Returns a request with a lease that ends immediately, and with a note that has this label.
fn brief(owner: OwnerId, label: &str) -> AcquireRequest {
    AcquireRequest::new(owner, MS, DAY).with_holder(Some(note(owner, label)))
}

async fn granted(store: &PostgresStore, id: &Identity, req: &AcquireRequest) -> Grant {
    match store.acquire(id, req).await.expect("answered") {
        Acquired::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn summary(store: &PostgresStore, id: &Identity) -> RecordSummary {
    store.get(id).await.expect("answered").expect("a record")
}

/// Returns the notes that an acquire, a peek and an inspection return.
async fn notes(store: &PostgresStore, id: &Identity) -> [Option<HolderNote>; 3] {
    let acquired = match store.acquire(id, &request(OwnerId::new())).await.expect("answered") {
        Acquired::Busy(lease) => lease.holder,
        Acquired::Complete(stored) => stored.holder().cloned(),
        Acquired::Granted(_) => panic!("granted"),
    };
    let peeked = match store.peek(id).await.expect("answered") {
        Peeked::Busy(lease) => lease.holder,
        Peeked::Complete(stored) => stored.holder().cloned(),
        Peeked::Absent => panic!("absent"),
    };
    [acquired, peeked, summary(store, id).await.holder]
}

fn three(note: Option<HolderNote>) -> [Option<HolderNote>; 3] {
    [note.clone(), note.clone(), note]
}

#[tokio::test]
async fn rec_2_every_answer_names_the_holder_until_its_result_is_gone() {
    for (_table, store, other) in pairs().await {
        let (id, owner) = (id("k"), OwnerId::new());
        let full = note(owner, &"pod-".repeat(20));
        assert_eq!(full.as_bytes().len(), HolderNote::MAX_BYTES);
        granted(&store, &id, &request(owner).with_holder(Some(full.clone()))).await;
        assert_eq!(notes(&other, &id).await, three(Some(full.clone())));
        // A heartbeat and a completion do not change the note.
        assert_eq!(store.extend(&id, owner, LONG).await.expect("extended"), FencedWrite::Applied);
        assert_eq!(notes(&other, &id).await, three(Some(full.clone())));
        let done = store.complete(&id, owner, &completion("x")).await;
        assert_eq!(done.expect("completed"), FencedWrite::Applied);
        for process in [&store, &other, &other] {
            assert_eq!(notes(process, &id).await, three(Some(full.clone())));
        }
    }
}

#[tokio::test]
async fn rec_2_each_grant_replaces_the_note_and_a_release_clears_it() {
    for (table, store, other) in pairs().await {
        let (id, owner) = (id("k"), OwnerId::new());
        granted(&store, &id, &labelled(owner, "first")).await;
        // The same owner acquires again.
        granted(&store, &id, &labelled(owner, "renewed")).await;
        assert_eq!(notes(&other, &id).await, three(Some(note(owner, "renewed"))));
        granted(&store, &id, &request(owner)).await;
        assert_eq!(notes(&other, &id).await, three(None));
        // Another owner takes over, with and without a note.
        for label in [Some("taker"), None] {
            granted(&store, &id, &brief(owner, "first")).await;
            tokio::time::sleep(5 * MS).await;
            let taker = OwnerId::new();
            let with = label.map(|label| note(taker, label));
            granted(&other, &id, &request(taker).with_holder(with.clone())).await;
            assert_eq!(notes(&store, &id).await, three(with));
            assert_eq!(other.release(&id, taker).await.expect("released"), FencedWrite::Applied);
        }
        granted(&store, &id, &labelled(owner, "last")).await;
        assert_eq!(store.release(&id, owner).await.expect("released"), FencedWrite::Applied);
        let left = format!("SELECT count(holder) FROM \"{}\"", table.name);
        assert_eq!(table.stranger().await.number(left).await, 0);
    }
}

#[tokio::test]
async fn rec_2_a_note_of_another_grant_or_of_other_bytes_is_missing_and_no_error() {
    for (table, store, other) in pairs().await {
        let mut stranger = table.stranger().await;
        let (busy, complete) = (id("busy"), id("complete"));
        let owner = OwnerId::new();
        for id in [&busy, &complete] {
            granted(&store, id, &labelled(owner, "earlier")).await;
        }
        let done = store.complete(&complete, owner, &completion("x")).await;
        assert_eq!(done.expect("completed"), FencedWrite::Applied);
        // Change the rows as an older program's grant does. Such a program writes no notes, so each
        // row then has the new owner and the old note.
        let new = OwnerId::new().as_bytes().map(|byte| format!("{byte:02x}")).concat();
        let grant = format!("UPDATE \"{}\" SET owner=decode('{new}','hex')", table.name);
        assert_eq!(stranger.run(grant).await, 2);
        for id in [&busy, &complete] {
            assert_eq!(notes(&other, id).await, three(None));
        }
        for bytes in ["''", "'\\x01'", "decode(repeat('01',65),'hex')", "NULL"] {
            let spoil = format!("UPDATE \"{}\" SET holder={bytes}", table.name);
            assert_eq!(stranger.run(spoil).await, 2);
            for id in [&busy, &complete] {
                assert_eq!(notes(&other, id).await, three(None), "{bytes}");
            }
        }
    }
}

#[tokio::test]
async fn rec_2_shared_completions_keep_the_notes() {
    let table = Table::new().await;
    let store = std::sync::Arc::new(table.store().await);
    let all: Vec<_> = (0..40)
        .map(|at| {
            let store = std::sync::Arc::clone(&store);
            tokio::spawn(async move {
                let (id, owner) = (id(&format!("k{at}")), OwnerId::new());
                granted(&store, &id, &labelled(owner, "holder")).await;
                let done = store.complete(&id, owner, &completion("x")).await;
                assert_eq!(done.expect("completed"), FencedWrite::Applied);
                assert_eq!(notes(&store, &id).await, three(Some(note(owner, "holder"))));
            })
        })
        .collect();
    for one in all {
        one.await.expect("no panic");
    }
}

#[tokio::test]
async fn rec_2_takeovers_are_counted_until_the_key_is_free() {
    for (table, store, other) in pairs().await {
        let (id, mut owner) = (id("k"), OwnerId::new());
        let mut stranger = table.stranger().await;
        assert!(!granted(&store, &id, &brief(owner, "first")).await.took_over);
        for count in 1..=3 {
            tokio::time::sleep(5 * MS).await;
            owner = OwnerId::new();
            for _ in 0..2 {
                // The same owner acquires again and gets the same grant.
                assert!(granted(&store, &id, &brief(owner, "taker")).await.took_over);
                assert_eq!(summary(&other, &id).await.takeovers, Some(count));
            }
        }
        // A heartbeat and a completion do not change the count.
        assert_eq!(store.extend(&id, owner, LONG).await.expect("extended"), FencedWrite::Applied);
        let done = store.complete(&id, owner, &completion("x")).await;
        assert_eq!(done.expect("completed"), FencedWrite::Applied);
        assert_eq!(summary(&other, &id).await.takeovers, Some(3));
        // A key whose ttl has ended is free.
        let over = format!(
            "UPDATE \"{}\" SET expires_at=clock_timestamp() WHERE key={}",
            table.name,
            hex("k")
        );
        assert_eq!(stranger.run(over).await, 1);
        assert!(!granted(&other, &id, &brief(owner, "next")).await.took_over);
        assert_eq!(summary(&other, &id).await.takeovers, Some(0));
        // A released key is free too.
        tokio::time::sleep(5 * MS).await;
        let taker = OwnerId::new();
        assert!(granted(&store, &id, &request(taker)).await.took_over);
        assert_eq!(store.release(&id, taker).await.expect("released"), FencedWrite::Applied);
        assert!(!granted(&store, &id, &request(owner)).await.took_over);
        assert_eq!(summary(&store, &id).await.takeovers, Some(0));
        // The count stops at the largest number that fits into its column.
        for before in [32_766, 32_767] {
            let full = format!(
                "UPDATE \"{}\" SET takeovers={before}, expires_at=clock_timestamp()",
                table.name
            );
            assert_eq!(stranger.run(full).await, 1);
            assert!(granted(&store, &id, &request(OwnerId::new())).await.took_over);
            assert_eq!(summary(&store, &id).await.takeovers, Some(32_767));
        }
    }
}

#[tokio::test]
async fn rec_2_an_inspection_says_how_long_ago_the_lease_was_granted() {
    let table = Table::new().await;
    let store = table.store().await;
    let (held, done) = (id("held"), id("done"));
    granted(&store, &held, &request(OwnerId::new())).await;
    execute(&store, &done, "x").await;
    let earlier = format!("UPDATE \"{}\" SET token=token-60000000", table.name);
    assert_eq!(table.stranger().await.run(earlier).await, 2);
    for id in [&held, &done] {
        let ago = summary(&store, id).await.granted_ago.expect("known");
        assert!((LONG..2 * LONG).contains(&ago), "{ago:?}");
    }
    // Set the token ahead of the server's clock, as if the clock had stepped back.
    let ahead = format!("UPDATE \"{}\" SET token=token+7200000000", table.name);
    assert_eq!(table.stranger().await.run(ahead).await, 2);
    assert_eq!(summary(&store, &held).await.granted_ago, Some(Duration::ZERO));
}
