// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-4: a destroyed key is noticed in every process when its cache ends, and not later.

use std::time::Duration;

use retryproof_seal::{Destruction, MemoryKeyTable, Seals};
use tokio::time::advance;

use crate::{ada, call, engine, is_replayed, is_tombstone, master, store};

/// Two processes: one destroys, and notices at once. The other one notices within 60 s.
#[tokio::test(start_paused = true)]
async fn seal_4_every_process_notices_within_the_time_of_the_cache() {
    let (table, store) = (MemoryKeyTable::new(), store());
    let seals = [0, 1].map(|_| Seals::new(table.clone(), master(&["one"])));
    let engines = seals.each_ref().map(|seals| engine(&store, seals));
    for key in ["k", "l"] {
        for subject in ["ada", "bob"] {
            let key = format!("{subject} {key}");
            assert!(call(&engines[0], subject, &key).await.unwrap().is_executed());
            assert!(is_replayed(&call(&engines[1], subject, &key).await, subject, &key));
        }
    }
    advance(Duration::from_secs(20)).await;
    assert_eq!(seals[0].destroy(&ada()).await.unwrap(), Destruction::Destroyed);
    assert!(is_tombstone(&call(&engines[0], "ada", "ada k").await));
    let cached = call(&engines[1], "ada", "ada k").await;
    assert!(is_replayed(&cached, "ada", "ada k"), "a key is cached for 60 s: {cached:?}");
    // The look-up of this key began 60 s ago. The replay in between did not extend the time in the
    // cache.
    advance(Duration::from_secs(40)).await;
    for engine in &engines {
        for key in ["ada k", "ada l"] {
            let answer = call(engine, "ada", key).await;
            assert!(is_tombstone(&answer), "{key}: {answer:?}");
        }
        assert!(is_replayed(&call(engine, "bob", "bob k").await, "bob", "bob k"));
    }
    assert_eq!(seals[1].destroy(&ada()).await.unwrap(), Destruction::Already);
    let nobody = retryproof_core::seal::DataSubject::named(&crate::secret(), "nobody");
    assert_eq!(seals[1].destroy(&nobody).await.unwrap(), Destruction::Absent);
}

#[tokio::test(start_paused = true)]
async fn seal_4_without_a_cache_the_next_call_notices() {
    let (table, store) = (MemoryKeyTable::new(), store());
    let seals = [0, 1].map(|_| Seals::caching(table.clone(), master(&["one"]), Duration::ZERO));
    let engines = seals.each_ref().map(|seals| engine(&store, seals));
    assert!(call(&engines[1], "ada", "k").await.unwrap().is_executed());
    seals[0].destroy(&ada()).await.unwrap();
    assert!(is_tombstone(&call(&engines[1], "ada", "k").await));
}
