// SPDX-License-Identifier: MIT OR Apache-2.0
//! If a completion joins the application's transaction, the record and the writes commit together,
//! or not at all.

use retryproof_core::store::{HolderNote, Peeked};
use retryproof_core::{IdempotencyStore as _, Identity};

use crate::ledger::Deed;
use crate::subject::Subject;

/// Returns the state of the record, and how many rows the application has committed.
async fn left(s: &Subject, id: &Identity) -> (&'static str, u64) {
    let rows =
        s.joined().expect("the store under test should offer transactions to join").rows().await;
    let record = match s.store().peek(id).await.expect("the peek should succeed") {
        Peeked::Absent => "absent",
        Peeked::Busy(_) => "in progress",
        Peeked::Complete(_) => "complete",
    };
    (record, rows)
}

async fn call(s: &Subject, id: &Identity, deed: Deed) -> bool {
    let joined = s.joined().expect("the store under test should offer transactions to join");
    joined.call(s.store().clone(), id.clone(), deed).await
}

/// After the commit, every other connection sees the record and the writes.
pub async fn cmp_7_a_joined_record_and_the_writes_are_one_commit(s: &Subject) {
    let id = s.id("k");
    let (_, before) = left(s, &id).await;
    assert!(call(s, &id, Deed::Write).await, "the call should be committed");
    assert_eq!(left(s, &id).await, ("complete", before + 1));
}

/// If the action fails, neither the record nor the writes are committed, and the key is free.
pub async fn cmp_7_a_joined_action_that_fails_leaves_neither(s: &Subject) {
    let id = s.id("k");
    let (_, before) = left(s, &id).await;
    assert!(!call(s, &id, Deed::Fail).await);
    assert_eq!(left(s, &id).await, ("absent", before));
    assert!(
        call(s, &id, Deed::Write).await,
        "the key should be free, and the connection should work"
    );
    assert_eq!(left(s, &id).await, ("complete", before + 1));
}

/// If an action ignores an error that made the database roll its transaction back, neither the
/// action's next statement nor the record is committed.
pub async fn cmp_7_a_joined_action_that_goes_on_without_its_transaction_leaves_neither(
    s: &Subject,
) {
    let id = s.id("k");
    let (_, before) = left(s, &id).await;
    assert!(
        !call(s, &id, Deed::GoOn).await,
        "the call should not be committed without its first write"
    );
    assert_eq!(left(s, &id).await, ("absent", before));
    assert!(
        call(s, &id, Deed::Write).await,
        "the key should be free, and the connection should work"
    );
    assert_eq!(left(s, &id).await, ("complete", before + 1));
}

/// A joined completion keeps the note of the engine that was granted the lease (REC-2).
pub async fn rec_2_a_joined_completion_keeps_the_note(s: &Subject) {
    let id = s.id("k");
    let (_, before) = left(s, &id).await;
    assert!(call(s, &id, Deed::Write).await, "the call should be committed");
    assert_eq!(left(s, &id).await, ("complete", before + 1));
    let Peeked::Complete(stored) = s.store().peek(&id).await.expect("the peek should succeed")
    else {
        panic!("expected a result")
    };
    let label = stored.holder().and_then(HolderNote::label).expect("the note should have a label");
    assert!(
        label.ends_with(&format!(":{}", std::process::id())),
        "the label of the note should end with this process's id, but is {label:?}"
    );
}
