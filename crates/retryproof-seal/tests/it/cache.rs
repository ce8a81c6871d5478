// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-4: every process stops using a destroyed key by the time its cached copy of the key
//! expires.

use std::sync::Arc;
use std::time::Duration;

use retryproof_seal::{
    DataKey, Destruction, KeyProvider, MasterKeys, MemoryKeyTable, ProviderFuture, Seals,
    WrappedKey,
};
use tokio::sync::Barrier;
use tokio::time::advance;

use crate::{ada, call, engine, is_replayed, is_tombstone, master, store};

/// Of two processes, one destroys a key, and stops using it immediately. The other process stops
/// using it within 60 s.
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
    // After this advance, the second process has had the key in its cache for 60 s. The replay
    // after 20 s did not extend that time.
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

/// Master keys that unwrap a key only when the test allows it.
#[derive(Debug)]
struct Slow {
    keys: MasterKeys,
    /// A barrier that each unwrap passes at its beginning, and again before its end.
    gate: Arc<Barrier>,
}

impl KeyProvider for Slow {
    fn current(&self) -> &str {
        self.keys.current()
    }

    fn wrap<'a>(&'a self, key: &'a DataKey, bound: &'a [u8]) -> ProviderFuture<'a, WrappedKey> {
        self.keys.wrap(key, bound)
    }

    fn unwrap<'a>(&'a self, key: &'a WrappedKey, bound: &'a [u8]) -> ProviderFuture<'a, DataKey> {
        Box::pin(async move {
            self.gate.wait().await;
            self.gate.wait().await;
            self.keys.unwrap(key, bound).await
        })
    }
}

/// A look-up that read a key before it was destroyed, and ends afterwards, does not put the key
/// into the cache.
#[tokio::test]
async fn seal_4_a_look_up_beside_the_destruction_is_not_cached() {
    let (table, store, gate) = (MemoryKeyTable::new(), store(), Arc::new(Barrier::new(2)));
    let other = engine(&store, &Seals::new(table.clone(), master(&["one"])));
    assert!(call(&other, "ada", "k").await.unwrap().is_executed());
    let seals = Seals::new(table, Slow { keys: master(&["one"]), gate: Arc::clone(&gate) });
    let engine = engine(&store, &seals);
    let beside = tokio::spawn({
        let engine = engine.clone();
        async move { call(&engine, "ada", "k").await }
    });
    gate.wait().await;
    assert_eq!(seals.destroy(&ada()).await.unwrap(), Destruction::Destroyed);
    gate.wait().await;
    drop(beside.await.unwrap());
    let after = call(&engine, "ada", "k").await;
    assert!(is_tombstone(&after), "this process stops using it at once: {after:?}");
}
