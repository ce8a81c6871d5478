// SPDX-License-Identifier: MIT OR Apache-2.0
//! STO-1: a duration that is too short for the store is refused before the store is called, and a
//! duration between two of the store's steps is rounded up with a warning.

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, StoreProfile};
use retryproof_core::{
    ErrorKind, ExecuteError, IdempotencyContext, IdempotencyEngine, IdempotencyStore, Identity,
    Outcome, Result, SharedStore,
};
use retryproof_memory::MemoryStore;

const SECOND: Duration = Duration::from_secs(1);

/// A store that keeps whole seconds, at least two, and refuses to be called with anything else.
#[derive(Debug)]
struct Seconds(MemoryStore);

impl Seconds {
    fn assert_kept(&self, duration: Duration) {
        assert_eq!(self.profile().round_up(duration), duration, "the engine should round up");
        assert!(duration >= 2 * SECOND, "the engine should refuse {duration:?}");
    }
}

impl IdempotencyStore for Seconds {
    retryproof_testkit::forward!(0: peek, wait_for_change, extend, complete, release);

    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.assert_kept(req.lease);
        self.assert_kept(req.ttl);
        self.0.acquire(id, req).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("seconds").with_durations(2 * SECOND, SECOND)
    }
}

fn engine() -> IdempotencyEngine {
    IdempotencyEngine::new(SharedStore::new(Seconds(MemoryStore::new())))
}

fn context(lease: Duration, ttl: Duration) -> IdempotencyContext {
    let context = IdempotencyContext::builder("pay", "canary-4711").lease(lease).ttl(ttl);
    context.build().expect("a valid context")
}

#[tokio::test(start_paused = true)]
async fn sto_1_a_duration_below_the_stores_shortest_is_refused() {
    let engine = engine();
    for (lease, ttl) in [(SECOND, 60 * SECOND), (60 * SECOND, SECOND)] {
        let ran = engine.execute(context(lease, ttl), || async { Ok::<_, &str>(1_u32) }).await;
        let Err(ExecuteError::Store(error)) = ran else { panic!("{ran:?}") };
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(text.contains("shorter than the store supports") && text.contains("2s"), "{text}");
        assert!(!text.contains("canary"), "ID-4: {text}");
    }
    let least = context(2 * SECOND, 2 * SECOND);
    let ran = engine.execute(least, || async { Ok::<_, &str>(1_u32) }).await;
    assert_eq!(ran.expect("the shortest duration is accepted"), Outcome::Executed(1));
}

#[cfg(feature = "config")]
#[test]
fn sto_1_a_lease_between_two_steps_is_rounded_up_with_one_warning() {
    let warnings = crate::config::Warnings::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    tracing::subscriber::with_default(warnings.clone(), || {
        runtime.expect("a runtime").block_on(async {
            let (engine, odd) = (engine(), Duration::from_millis(2_500));
            for _ in 0..2 {
                let ran = engine.execute(context(odd, odd), || async { Ok::<_, &str>(1_u32) });
                let ran = ran.await.expect("the store is called with whole seconds");
                assert!(matches!(ran, Outcome::Executed(1) | Outcome::Replayed(1)));
            }
        });
    });
    let said = warnings.0.lock().expect("no test panics").join("\n");
    assert_eq!(said.matches("rounds them up").count(), 1, "{said}");
    assert!(said.contains("lease=2.5s") && said.contains("kept_lease=3s"), "{said}");
}
