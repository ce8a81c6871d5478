// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-7: a rotation wraps the data keys again, loses nothing and revives nothing.

use std::time::Duration;

use retryproof_core::{ErrorKind, ExecuteError};
use retryproof_seal::{KeyTable as _, MemoryKeyTable, Seals};

use crate::{ada, call, engine, is_replayed, is_tombstone, master, store};

const SUBJECTS: usize = 250;

#[tokio::test(start_paused = true)]
async fn seal_7_after_a_rotation_the_old_master_key_is_not_needed() {
    let (table, store) = (MemoryKeyTable::new(), store());
    let before = Seals::new(table.clone(), master(&["old"]));
    let engine_before = engine(&store, &before);
    let names: Vec<_> = (0..SUBJECTS).map(|n| format!("subject {n}")).collect();
    for name in &names {
        assert!(call(&engine_before, name, name).await.unwrap().is_executed());
    }
    assert!(call(&engine_before, "ada", "k").await.unwrap().is_executed());
    before.destroy(&ada()).await.unwrap();

    let rotating = Seals::new(table.clone(), master(&["newer", "old"]));
    assert_eq!(rotating.rotate().await.unwrap(), SUBJECTS, "a destroyed key is not wrapped");
    assert_eq!(rotating.rotate().await.unwrap(), 0, "a repetition changes nothing");
    assert!(table.not_under("newer", None, 10).await.unwrap().is_empty());

    let after = engine(&store, &Seals::new(table, master(&["newer"])));
    for name in &names {
        assert!(is_replayed(&call(&after, name, name).await, name, name));
    }
    assert!(is_tombstone(&call(&after, "ada", "k").await));
}

/// A rotation that runs beside calls and beside the destruction of keys loses no result and revives
/// no destroyed key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seal_7_a_rotation_under_load_loses_nothing() {
    let (table, store) = (MemoryKeyTable::new(), store());
    let old = Seals::caching(table.clone(), master(&["old", "newer"]), Duration::ZERO);
    let new = Seals::caching(table.clone(), master(&["newer", "old"]), Duration::ZERO);
    let workers = (0..8).map(|worker| {
        let engine = engine(&store, if worker % 2 == 0 { &old } else { &new });
        let (seals, name) = (new.clone(), format!("worker {worker}"));
        tokio::spawn(async move {
            for n in 0..100 {
                let (subject, key) = (format!("{name} {}", n % 10), format!("{name} {n}"));
                assert!(call(&engine, &subject, &key).await.unwrap().is_executed());
                assert!(is_replayed(&call(&engine, &subject, &key).await, &subject, &key));
            }
            let gone =
                retryproof_core::seal::DataSubject::named(&crate::secret(), &format!("{name} 0"));
            seals.destroy(&gone).await.unwrap();
        })
    });
    let workers: Vec<_> = workers.collect();
    while !workers.iter().all(tokio::task::JoinHandle::is_finished) {
        new.rotate().await.unwrap();
        tokio::task::yield_now().await;
    }
    for worker in workers {
        worker.await.unwrap();
    }
    // All workers that wrap keys with the old master key have ended, so this rotation rewraps the
    // last of those keys.
    new.rotate().await.unwrap();
    let after = engine(&store, &Seals::new(table, master(&["newer"])));
    for worker in 0..8 {
        for n in 0..100 {
            let (name, which) = (format!("worker {worker}"), n % 10);
            let (subject, key) = (format!("{name} {which}"), format!("{name} {n}"));
            let answer = call(&after, &subject, &key).await;
            assert_eq!(is_tombstone(&answer), which == 0, "{key}: {answer:?}");
            assert!(which == 0 || is_replayed(&answer, &subject, &key), "{key}: {answer:?}");
        }
    }
}

/// A rotation without the old master key fails, and changes nothing.
#[tokio::test(start_paused = true)]
async fn seal_7_a_rotation_without_the_old_master_key_changes_nothing() {
    let (table, store) = (MemoryKeyTable::new(), store());
    let engine_before = engine(&store, &Seals::new(table.clone(), master(&["old"])));
    assert!(call(&engine_before, "ada", "k").await.unwrap().is_executed());
    let before = table.of_subject(&ada()).await.unwrap();
    let error = Seals::new(table.clone(), master(&["newer"])).rotate().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_eq!(table.of_subject(&ada()).await.unwrap(), before);
    let after = call(&engine(&store, &Seals::new(table, master(&["newer"]))), "ada", "k").await;
    assert!(matches!(after, Err(ExecuteError::Store(error)) if error.kind() == ErrorKind::Config));
}

/// A rotation stops at a data key that is wrapped by an unknown master key. The keys that it has
/// already rewrapped stay valid, and a repeated rotation does the rest.
#[tokio::test(start_paused = true)]
async fn seal_7_what_a_stopped_rotation_wrapped_stays_valid() {
    let (table, store) = (MemoryKeyTable::new(), store());
    for (name, id) in [("ada", "old"), ("bob", "old"), ("eve", "lost-key"), ("joe", "old")] {
        let engine = engine(&store, &Seals::new(table.clone(), master(&[id])));
        assert!(call(&engine, name, name).await.unwrap().is_executed());
    }
    let stopped = Seals::new(table.clone(), master(&["newer", "old"])).rotate().await.unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::Config);
    let left = table.not_under("newer", None, 9).await.unwrap().len();
    assert!((1..=4).contains(&left), "{left}");
    let all = Seals::new(table.clone(), master(&["newer", "old", "lost-key"]));
    let after = engine(&store, &all);
    for name in ["ada", "bob", "eve", "joe"] {
        assert!(is_replayed(&call(&after, name, name).await, name, name), "{name}");
    }
    assert_eq!(all.rotate().await.unwrap(), left);
}
