// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-2, SEAL-5: if a sealer panics, hangs or has no key, only the call fails, or a tombstone is
//! recorded.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retryproof_core::config::ScopeConfig;
use retryproof_core::seal::{DataSubject, SealFuture, Sealer, SealingKey, SubjectKey, Unsealed};
use retryproof_core::store::{Peeked, SharedStore};
use retryproof_core::{
    CompletionFailurePolicy, ErrorKind, ExecuteError, IdempotencyConfig, IdempotencyContext,
    IdempotencyEngine, IdempotencyStore as _, Recorded,
};
use retryproof_memory::MemoryStore;
use tokio::time::Instant;

use super::{ANSWER, SCOPE, World, id, of, secret};

/// A sealer that changes nothing, and panics or hangs on demand.
#[derive(Debug, Clone, Default)]
struct Failing {
    hangs: Arc<AtomicBool>,
    at_key: Arc<AtomicBool>,
    at_seal: Arc<AtomicBool>,
    at_open: Arc<AtomicBool>,
}

impl Failing {
    async fn answer<T>(&self, answer: T) -> retryproof_core::Result<T> {
        if self.hangs.load(Ordering::SeqCst) {
            pending().await
        }
        Ok(answer)
    }

    fn store(&self) -> SharedStore {
        let memory = MemoryStore::builder().identity_secret(secret()).build();
        SharedStore::from(memory).sealed_by(Arc::new(self.clone())).unwrap()
    }
}

fn panic_at(place: &AtomicBool) {
    assert!(!place.load(Ordering::SeqCst), "canary");
}

impl Sealer for Failing {
    fn key_for<'a>(&'a self, _: &'a DataSubject) -> SealFuture<'a, SubjectKey> {
        panic_at(&self.at_key);
        Box::pin(self.answer(SubjectKey::Key(Arc::new(self.clone()))))
    }

    fn open<'a>(&'a self, sealed: &'a [u8], _: &'a [u8]) -> SealFuture<'a, Unsealed> {
        panic_at(&self.at_open);
        Box::pin(self.answer(Unsealed::Result(sealed.to_vec())))
    }
}

impl SealingKey for Failing {
    fn seal(&self, result: &[u8], _: &[u8]) -> retryproof_core::Result<Vec<u8>> {
        panic_at(&self.at_seal);
        Ok(result.to_vec())
    }
}

#[tokio::test(start_paused = true)]
async fn seal_2_seal_5_a_sealer_that_panics_fails_its_call_alone() {
    let sealer = Failing::default();
    let store = sealer.store();
    let engine = IdempotencyEngine::new(store.clone());
    let call = |key| engine.call(of(key)).report(|_| async { Ok::<_, &str>(ANSWER.to_owned()) });
    assert_eq!(call("done").await.unwrap().recorded, Recorded::Yes);
    let told = async |key| match call(key).await {
        Err(ExecuteError::Store(error)) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("the sealer panicked"), "{error}");
        }
        other => panic!("expected an error, got {other:?}"),
    };

    sealer.at_key.store(true, Ordering::SeqCst);
    told("new").await;
    assert!(matches!(store.peek(&id("new")).await.unwrap(), Peeked::Absent), "nothing ran");
    sealer.at_key.store(false, Ordering::SeqCst);
    sealer.at_open.store(true, Ordering::SeqCst);
    told("done").await;
    sealer.at_open.store(false, Ordering::SeqCst);
    assert!(call("done").await.unwrap().outcome.is_replayed());

    sealer.at_seal.store(true, Ordering::SeqCst);
    let report = call("unsealed").await.unwrap();
    assert_eq!((report.outcome.is_executed(), report.recorded), (true, Recorded::Tombstone));
    assert!(matches!(call("unsealed").await, Err(ExecuteError::NotReplayable(_))));
}

#[tokio::test(start_paused = true)]
async fn seal_2_a_sealer_that_hangs_fails_its_call_in_time() {
    let sealer = Failing::default();
    let store = sealer.store();
    let (engine, mut config) =
        (IdempotencyEngine::new(store.clone()), IdempotencyConfig::default());
    let shadow = ScopeConfig { shadow: Some(true), ..ScopeConfig::default() };
    config.scopes.insert(SCOPE.to_owned(), shadow);
    let watched = IdempotencyEngine::builder(store).config(config).build().unwrap();
    let run = async |engine: &IdempotencyEngine, key| {
        let began = Instant::now();
        let answer = engine.execute(of(key), || async { Ok::<_, &str>(ANSWER.to_owned()) }).await;
        (answer, began.elapsed())
    };
    assert!(run(&engine, "done").await.0.unwrap().is_executed());
    sealer.hangs.store(true, Ordering::SeqCst);
    let (answer, after) = run(&engine, "done").await;
    assert_eq!(super::kind(answer), ErrorKind::Unavailable);
    assert_eq!(after, Duration::from_secs(5), "operation-timeout");
    // In shadow mode, the call runs and waits for a shorter time (CTX-6).
    for key in ["done", "new"] {
        let (answer, after) = run(&watched, key).await;
        assert!(answer.unwrap().is_executed());
        assert!(after <= Duration::from_secs(5), "{after:?}");
    }
}

/// A scope that is switched off needs no key. A scope in shadow mode runs without one.
#[tokio::test(start_paused = true)]
async fn seal_2_scopes_that_guard_nothing_run_without_a_key() {
    let mut config = IdempotencyConfig::default();
    let off = ScopeConfig { enabled: Some(false), ..ScopeConfig::default() };
    let shadow = ScopeConfig { shadow: Some(true), ..ScopeConfig::default() };
    config.scopes.extend([("off".to_owned(), off), ("shadow".to_owned(), shadow)]);
    let world = World::with(config);
    let run = async |scope: &'static str| {
        world.run(IdempotencyContext::builder(scope, "k").build().unwrap()).await.unwrap()
    };
    world.keys.fail(Some(ErrorKind::Unavailable));
    assert!(run("off").await.is_executed() && run("shadow").await.is_executed());
    // If the keys are unavailable, or a key was destroyed, no call in shadow mode fails (CTX-6).
    let strict = async |key: &str| {
        let ctx = IdempotencyContext::builder("shadow", key).subject("ada").build().unwrap();
        let call = world.engine.call(ctx).completion(CompletionFailurePolicy::Propagate);
        call.execute(|| async { Ok::<_, &str>(ANSWER.to_owned()) }).await
    };
    assert!(strict("away").await.unwrap().is_executed());
    world.keys.fail(None);
    world.keys.destroy(&DataSubject::named(&secret(), "ada"));
    assert!(strict("destroyed").await.unwrap().is_executed());
    let asked = world.keys.asked();
    assert!(run("off").await.is_executed());
    assert_eq!(world.keys.asked(), asked, "nothing is recorded, so nothing is sealed");
    assert!(run("shadow").await.is_executed());
}
