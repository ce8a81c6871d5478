// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-2, SEAL-7: a missing or wrong key fails closed, and changes nothing.

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Completion, FencedWrite, Peeked};
use retryproof_core::{ErrorKind, ExecuteError, IdempotencyStore as _, Identity, OwnerId};
use retryproof_seal::{KeyTable as _, MasterKeys, MemoryKeyTable, Seals};

use crate::{Answer, ada, call, engine, is_replayed, master, store};

fn kind(answer: Answer) -> ErrorKind {
    match answer {
        Err(ExecuteError::Store(error)) => error.kind(),
        other => panic!("expected an error of the store, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn seal_7_a_wrong_or_missing_master_key_fails_closed_and_changes_nothing() {
    let (table, store) = (MemoryKeyTable::new(), store());
    let right = engine(&store, &Seals::new(table.clone(), master(&["one"])));
    assert!(call(&right, "ada", "done").await.unwrap().is_executed());
    let row = table.of_subject(&ada()).await.unwrap();
    let wrong = MasterKeys::parse(&format!("one:{}", "ff".repeat(32))).unwrap();
    for master in [wrong, master(&["other"])] {
        let engine = engine(&store, &Seals::new(table.clone(), master));
        for key in ["done", "new"] {
            assert_eq!(kind(call(&engine, "ada", key).await), ErrorKind::Config);
        }
        let new = store.peek(&Identity::of("pay", "new").unwrap()).await.unwrap();
        assert!(matches!(new, Peeked::Absent), "nothing ran");
        assert_eq!(table.of_subject(&ada()).await.unwrap(), row);
    }
    assert!(is_replayed(&call(&right, "ada", "done").await, "ada", "done"));
}

/// A result whose key is not in the table is unreadable, and not a tombstone.
#[tokio::test(start_paused = true)]
async fn seal_2_an_unknown_key_is_not_a_destroyed_one() {
    let store = store();
    let right = engine(&store, &Seals::new(MemoryKeyTable::new(), master(&["one"])));
    assert!(call(&right, "ada", "done").await.unwrap().is_executed());
    let other = engine(&store, &Seals::new(MemoryKeyTable::new(), master(&["one"])));
    assert_eq!(kind(call(&other, "ada", "done").await), ErrorKind::Corrupt);
}

/// A wrapped key that was moved to the row of another subject does not open.
#[tokio::test(start_paused = true)]
async fn seal_3_a_wrapped_key_opens_in_its_own_row_alone() {
    let (table, store) = (MemoryKeyTable::new(), store());
    let right = engine(&store, &Seals::new(table.clone(), master(&["one"])));
    for subject in ["ada", "bob"] {
        assert!(call(&right, subject, subject).await.unwrap().is_executed());
    }
    let bob = retryproof_core::seal::DataSubject::named(&crate::secret(), "bob");
    let row = async |subject| table.of_subject(&subject).await.unwrap().unwrap();
    let (of_ada, of_bob) = (row(ada()).await, row(bob).await);
    let (own, theirs) = (of_bob.wrapped.unwrap(), of_ada.wrapped.unwrap());
    assert!(table.replace(of_bob.id, &own, &theirs).await.unwrap());
    let fresh = engine(&store, &Seals::new(table, master(&["one"])));
    assert_eq!(kind(call(&fresh, "bob", "bob").await), ErrorKind::Config);
    assert!(is_replayed(&call(&fresh, "ada", "ada").await, "ada", "ada"));
}

/// A result that was changed, or moved to another record, is unreadable, and nothing runs.
#[tokio::test(start_paused = true)]
async fn seal_5_a_moved_or_changed_result_does_not_open() {
    let store = store();
    let engine = engine(&store, &Seals::new(MemoryKeyTable::new(), master(&["one"])));
    assert!(call(&engine, "ada", "k").await.unwrap().is_executed());
    let id = |key: &str| Identity::of("pay", key).unwrap();
    let Peeked::Complete(stored) = store.peek(&id("k")).await.unwrap() else {
        panic!("expected a result")
    };
    let sealed = stored.sealed().expect("a sealed result").to_vec();
    let mut changed = sealed.clone();
    *changed.last_mut().unwrap() ^= 1;
    for (key, bytes) in [("moved", sealed), ("changed", changed)] {
        let (owner, minute) = (OwnerId::new(), Duration::from_secs(60));
        let acquire = AcquireRequest::new(owner, minute, minute);
        let _ = store.acquire(&id(key), &acquire).await.unwrap();
        let done = Completion::new(bytes.into(), minute, None);
        let written = store.complete(&id(key), owner, &done).await.unwrap();
        assert_eq!(written, FencedWrite::Applied);
        assert_eq!(kind(call(&engine, "ada", key).await), ErrorKind::Corrupt, "{key}");
    }
    assert!(is_replayed(&call(&engine, "ada", "k").await, "ada", "k"));
}
