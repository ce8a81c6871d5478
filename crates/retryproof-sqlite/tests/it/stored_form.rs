// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a row contains besides the result: the note about the holder and the count of takeovers
//! (REC-2), and the space for a log (REC-3).

use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, FencedWrite, Grant, HolderNote, Inspect, Peeked, Purge, RecordSummary,
};
use retryproof_core::{IdempotencyStore, Identity, OwnerId};
use retryproof_sqlite::SqliteStore;

use crate::support::{DAY, Dir, LONG, Wall, completion, grant, id, request};

fn note(owner: OwnerId, label: &str) -> HolderNote {
    HolderNote::new(owner, LONG, None, label)
}

/// Returns a request with a note about its owner.
fn noted(owner: OwnerId, label: &str) -> AcquireRequest {
    request(owner).with_holder(Some(note(owner, label)))
}

async fn granted(store: &SqliteStore, id: &Identity, request: &AcquireRequest) -> Grant {
    match store.acquire(id, request).await {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn beat(store: &SqliteStore, id: &Identity, owner: OwnerId) {
    assert_eq!(store.extend(id, owner, LONG).await.expect("extended"), FencedWrite::Applied);
}

async fn complete(store: &SqliteStore, id: &Identity, owner: OwnerId) {
    let done = completion("result");
    assert_eq!(store.complete(id, owner, &done).await.expect("completed"), FencedWrite::Applied);
}

/// Returns the label in the holder's note, and checks that another acquire, a peek and `get` return
/// the same note.
async fn label(store: &SqliteStore, id: &Identity) -> Option<String> {
    let acquired = match store.acquire(id, &request(OwnerId::new())).await {
        Ok(Acquired::Busy(lease)) => lease.holder,
        Ok(Acquired::Complete(stored)) => stored.holder().cloned(),
        other => panic!("neither busy nor complete: {other:?}"),
    };
    let peeked = match store.peek(id).await {
        Ok(Peeked::Busy(lease)) => lease.holder,
        Ok(Peeked::Complete(stored)) => stored.holder().cloned(),
        other => panic!("neither busy nor complete: {other:?}"),
    };
    assert_eq!((&acquired, &peeked), (&peeked, &summary(store, id).await.holder));
    acquired.map(|note| note.label().expect("a label").to_owned())
}

async fn summary(store: &SqliteStore, id: &Identity) -> RecordSummary {
    store.get(id).await.expect("read").expect("a record")
}

async fn takeovers(store: &SqliteStore, id: &Identity) -> u16 {
    summary(store, id).await.takeovers.expect("the store counts takeovers")
}

fn change(dir: &Dir, assignment: &str) {
    let changed = dir
        .stranger()
        .execute(&format!("UPDATE retryproof_records SET {assignment}"), [])
        .expect("the row is changed");
    assert_eq!(changed, 1);
}

fn store_on(dir: &Dir) -> (SqliteStore, Wall) {
    let wall = Wall::new();
    (SqliteStore::open_with(wall.on(dir.config())).expect("opened"), wall)
}

#[tokio::test]
async fn rec_2_the_note_stays_from_the_grant_to_the_end_of_the_result() {
    let dir = Dir::new();
    let (store, wall) = store_on(&dir);
    let (id, first, second) = (id("k"), OwnerId::new(), OwnerId::new());
    granted(&store, &id, &noted(first, "first:1")).await;
    assert_eq!(label(&store, &id).await.as_deref(), Some("first:1"));
    beat(&store, &id, first).await;
    assert_eq!(label(&store, &id).await.as_deref(), Some("first:1"));
    // The note is replaced when the same owner acquires again, and when another owner takes over.
    granted(&store, &id, &noted(first, "first:1 again")).await;
    assert_eq!(label(&store, &id).await.as_deref(), Some("first:1 again"));
    granted(&store, &id, &request(first)).await;
    assert_eq!(label(&store, &id).await, None, "the last grant had no note");
    wall.forward(LONG);
    granted(&store, &id, &noted(second, "second:2")).await;
    assert_eq!(label(&store, &id).await.as_deref(), Some("second:2"));
    complete(&store, &id, second).await;
    assert_eq!(label(&store, &id).await.as_deref(), Some("second:2"));
    // After a day, the result has expired. The next grant has no note.
    wall.forward(DAY);
    granted(&store, &id, &request(first)).await;
    assert_eq!(label(&store, &id).await, None);
}

#[tokio::test]
async fn rec_2_a_note_of_an_earlier_grant_is_disowned() {
    let dir = Dir::new();
    let (store, wall) = store_on(&dir);
    let id = id("k");
    granted(&store, &id, &noted(OwnerId::new(), "first:1")).await;
    // An older program, which does not write notes, takes the key over and leaves the old note in
    // the row.
    wall.forward(LONG);
    change(&dir, "owner = randomblob(16), token = token + 1, expires_at = expires_at + 60000000");
    assert_eq!(label(&store, &id).await, None);
    assert_eq!(summary(&store, &id).await.granted_ago, Some(LONG - Duration::from_micros(1)));
}

#[tokio::test]
async fn rec_2_bytes_that_are_no_note_are_never_an_error() {
    let dir = Dir::new();
    let (store, _) = store_on(&dir);
    let (id, owner) = (id("k"), OwnerId::new());
    granted(&store, &id, &noted(owner, "first:1")).await;
    for bytes in ["x''", "x'01'", "randomblob(64)", "zeroblob(65)", "'text'", "7", "NULL"] {
        change(&dir, &format!("holder = {bytes}"));
        assert_eq!(label(&store, &id).await, None, "{bytes}");
    }
    // Write the owner's note in the form of a newer version of the library.
    let mut newer = note(owner, "first:1").as_bytes().to_vec();
    newer[0] = 2;
    dir.stranger().execute("UPDATE retryproof_records SET holder = ?1", [newer]).expect("changed");
    let found = summary(&store, &id).await.holder.expect("the note belongs to the owner");
    assert!(found.is_newer() && found.label().is_none());
    granted(&store, &id, &noted(owner, "again:1")).await;
    assert_eq!(label(&store, &id).await.as_deref(), Some("again:1"));
}

#[tokio::test]
async fn rec_2_takeovers_are_counted_until_the_key_is_free() {
    let dir = Dir::new();
    let (store, wall) = store_on(&dir);
    let (id, mut owner) = (id("k"), OwnerId::new());
    assert!(!grant(&store, &id, owner).await.took_over);
    assert_eq!(takeovers(&store, &id).await, 0);
    for count in 1..=3 {
        wall.forward(LONG);
        owner = OwnerId::new();
        assert!(grant(&store, &id, owner).await.took_over);
        assert_eq!(takeovers(&store, &id).await, count);
        // The same owner acquires again, once before its lease ends and once after (ACQ-9).
        assert!(grant(&store, &id, owner).await.took_over);
        wall.forward(LONG);
        assert!(grant(&store, &id, owner).await.took_over);
        assert_eq!(takeovers(&store, &id).await, count);
    }
    assert_eq!(store.release(&id, owner).await.expect("released"), FencedWrite::Applied);
    assert!(!grant(&store, &id, owner).await.took_over);
    assert_eq!(takeovers(&store, &id).await, 0);

    wall.forward(LONG);
    owner = OwnerId::new();
    assert!(grant(&store, &id, owner).await.took_over);
    complete(&store, &id, owner).await;
    assert_eq!(takeovers(&store, &id).await, 1, "a completion keeps the count");
    wall.forward(DAY);
    assert!(!grant(&store, &id, OwnerId::new()).await.took_over, "the result has expired");
    assert_eq!(takeovers(&store, &id).await, 0);
}

#[tokio::test]
async fn rec_2_the_count_of_takeovers_stops_at_its_largest_value() {
    let dir = Dir::new();
    let (store, wall) = store_on(&dir);
    let id = id("k");
    grant(&store, &id, OwnerId::new()).await;
    change(&dir, "takeovers = 32766");
    for _ in 0..3 {
        wall.forward(LONG);
        assert!(grant(&store, &id, OwnerId::new()).await.took_over);
        assert_eq!(takeovers(&store, &id).await, 32_767);
    }
}

#[tokio::test]
async fn rec_2_get_returns_the_time_since_the_grant() {
    let dir = Dir::new();
    let (store, wall) = store_on(&dir);
    let (id, owner) = (id("k"), OwnerId::new());
    grant(&store, &id, owner).await;
    assert_eq!(summary(&store, &id).await.granted_ago, Some(Duration::ZERO));
    wall.forward(Duration::from_secs(7));
    beat(&store, &id, owner).await;
    assert_eq!(summary(&store, &id).await.granted_ago, Some(Duration::from_secs(7)));
    complete(&store, &id, owner).await;
    assert_eq!(summary(&store, &id).await.granted_ago, Some(Duration::from_secs(7)));
    wall.back(DAY);
    assert_eq!(summary(&store, &id).await.granted_ago, Some(Duration::ZERO));
}

/// Turns the table's only row into a record that a newer version of the library has released but
/// kept for its log (REC-3). The row keeps its owner, and its lease has not ended.
fn keep(dir: &Dir) {
    change(dir, "state = 2, log = x'0107', takeovers = 1");
}

#[tokio::test]
async fn rec_3_a_record_that_was_released_with_a_log_is_absent() {
    let dir = Dir::new();
    let store = dir.store();
    let (id, owner) = (id("k"), OwnerId::new());
    let token = granted(&store, &id, &noted(owner, "first:1")).await.token;
    keep(&dir);

    assert!(matches!(store.peek(&id).await, Ok(Peeked::Absent)));
    assert!(store.get(&id).await.expect("read").is_none());
    let stats = store.stats().await.expect("counted");
    assert_eq!((stats.records, stats.in_progress, stats.bytes), (0, 0, 0));
    tokio::time::timeout(LONG / 6, store.wait_for_change(&id, token, LONG))
        .await
        .expect("there is nothing to wait for")
        .expect("read");
    for any_owner in [owner, OwnerId::new()] {
        let done = completion("result");
        assert_eq!(store.extend(&id, any_owner, LONG).await.unwrap(), FencedWrite::NotOwner);
        assert_eq!(store.complete(&id, any_owner, &done).await.unwrap(), FencedWrite::NotOwner);
        assert_eq!(store.release(&id, any_owner).await.unwrap(), FencedWrite::AlreadyApplied);
    }

    for next in [owner, OwnerId::new()] {
        let second = granted(&store, &id, &request(next)).await;
        assert!(second.token > token && !second.took_over, "a first attempt");
        let (state, has_log): (i64, bool) = dir
            .stranger()
            .query_row("SELECT state, log IS NOT NULL FROM retryproof_records", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .expect("the row is there");
        assert_eq!((state, has_log, takeovers(&store, &id).await), (0, false, 0));
        keep(&dir);
    }
}

#[tokio::test]
async fn rec_3_purge_deletes_a_record_that_was_released_with_a_log() {
    let dir = Dir::new();
    let (store, wall) = store_on(&dir);
    let (id, owner) = (id("k"), OwnerId::new());
    grant(&store, &id, owner).await;
    // The lease would end after the ttl. The release ends the lease, so only the ttl decides when
    // the record is purged.
    let extended = store.extend(&id, owner, 2 * DAY).await.expect("extended");
    assert_eq!(extended, FencedWrite::Applied);
    keep(&dir);
    wall.forward(DAY - Duration::from_micros(1));
    assert_eq!(store.purge(10).await.expect("purged"), 0, "its ttl has not ended");
    wall.forward(Duration::from_micros(1));
    assert_eq!(store.purge(10).await.expect("purged"), 1);
}
