// SPDX-License-Identifier: MIT OR Apache-2.0
//! CTX-6: a scope with `shadow = true` runs every call, and counts what the guard would have done.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::config::ScopeConfig;
use retryproof_core::observe::{Counters, LeaseEvent, Observer, ShadowVerdict};
use retryproof_core::store::Peeked;
use retryproof_core::{
    Acquisition, CodecId, CompletionFailurePolicy, CompletionResult, ErrorKind, ExecuteError,
    Fingerprint, HeldLease, IdempotencyConfig, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore as _, Outcome, Payload, Recorded, SharedStore, Tombstone,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{Fault, FaultStore, Faults, Operation, Outage};
use tokio::time::{Instant, sleep, timeout};

use crate::events::support::Noted;
use crate::outcomes::Told;

/// The scope in shadow mode; the log's listener expects this name.
const WATCHED: &str = "told";

/// The verdicts so far.
#[derive(Debug, Default)]
struct Verdicts(Mutex<Vec<ShadowVerdict>>);

impl Verdicts {
    fn take(&self) -> Vec<ShadowVerdict> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Observer for Verdicts {
    fn shadowed(&self, _: LeaseEvent<'_>, verdict: ShadowVerdict) {
        self.0.lock().push(verdict);
    }
}

struct World {
    engine: IdempotencyEngine,
    store: SharedStore,
    faults: Faults,
    counters: Arc<Counters>,
    verdicts: Arc<Verdicts>,
}

fn world_with(with: impl FnOnce(&mut IdempotencyConfig)) -> World {
    let (faults, counters) = (Faults::none(), Counters::new());
    let verdicts = Arc::<Verdicts>::default();
    let store = SharedStore::new(FaultStore::new(MemoryStore::new(), faults.clone()));
    let mut config = IdempotencyConfig::default();
    let watched = ScopeConfig { shadow: Some(true), ..ScopeConfig::default() };
    config.scopes.insert(WATCHED.to_owned(), watched);
    with(&mut config);
    let engine = IdempotencyEngine::builder(store.clone())
        .config(config)
        .observer(Arc::clone(&counters))
        .observer(Arc::clone(&verdicts))
        .build()
        .unwrap();
    World { engine, store, faults, counters, verdicts }
}

fn world() -> World {
    world_with(|_| {})
}

fn of(key: &str, fingerprint: &[u8]) -> IdempotencyContext {
    IdempotencyContext::builder(WATCHED, format!("canary-{key}"))
        .fingerprint(Fingerprint::new(fingerprint).unwrap())
        .build()
        .unwrap()
}

async fn run(engine: &IdempotencyEngine, ctx: IdempotencyContext, value: u32) {
    let outcome = engine.execute(ctx, || async { Ok::<_, &str>(value) }).await.unwrap();
    assert_eq!(outcome, Outcome::Executed(value), "every call runs");
}

async fn hold(engine: &IdempotencyEngine, ctx: &IdempotencyContext) -> HeldLease {
    match engine.try_acquire(ctx).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn ctx_6_run_7_run_8_every_call_runs_and_tells_what_the_guard_would_have_done() {
    let (told, _listening) = Told::listen();
    let World { engine, counters, verdicts, .. } = world();
    for value in 1..4 {
        run(&engine, of("k", &[1, 1]), value).await;
    }
    run(&engine, of("k", &[1, 2]), 4).await;
    // This fingerprint has a different algorithm. Only a filter could compare it with the first, so
    // the engine counts a replay.
    run(&engine, of("k", &[2, 2]), 5).await;
    use ShadowVerdict::{Executed, Mismatch, Replayed};
    assert_eq!(verdicts.take(), [Executed, Replayed, Replayed, Mismatch, Replayed]);
    let said = ["executed", "replayed", "replayed", "mismatch", "replayed"];
    let said = said.map(|would_be| format!("shadow would_be={would_be} attempt=first"));
    assert_eq!(told.outcomes(), said);
    let counts = counters.read();
    assert_eq!((counts.shadowed, counts.completed, counts.replayed, counts.acquired), (5, 0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn ctx_6_what_the_guard_would_have_run_is_recorded_once() {
    let World { engine, store, faults, .. } = world();
    let ctx = of("k", &[1, 1]);
    run(&engine, ctx.clone(), 1).await;
    assert_eq!(faults.calls(), 2, "an acquire and a completion, as with a guard");
    let stored = match store.peek(ctx.identity()).await.unwrap() {
        Peeked::Complete(stored) => stored,
        other => panic!("{other:?}"),
    };
    let calls = faults.calls();
    run(&engine, ctx.clone(), 2).await;
    assert_eq!(faults.calls() - calls, 1, "a duplicate only asks");
    let again = match store.peek(ctx.identity()).await.unwrap() {
        Peeked::Complete(stored) => stored,
        other => panic!("{other:?}"),
    };
    let body = |stored: &retryproof_core::StoredResult| format!("{:?}", stored.open(None).unwrap());
    assert_eq!(body(&stored), body(&again), "the first result stays");
    // An engine that guards the scope replays the record that was written in shadow mode.
    let guarded = IdempotencyEngine::new(store);
    let replayed = guarded.execute(ctx, || async { Ok::<u32, &str>(3) }).await.unwrap();
    assert_eq!(replayed, Outcome::Replayed(1));
}

#[tokio::test(start_paused = true)]
async fn ctx_6_nothing_waits_for_a_running_call() {
    let World { engine, verdicts, counters, .. } = world();
    let held = hold(&engine, &of("k", &[1, 1])).await;
    assert!(!held.lease().is_guarded());
    assert_eq!(held.lease().shadow(), Some(ShadowVerdict::Executed));
    let began = Instant::now();
    run(&engine, of("k", &[1, 1]), 2).await;
    run(&engine, of("k", &[1, 2]), 3).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(verdicts.take(), [ShadowVerdict::InFlight, ShadowVerdict::Mismatch]);
    // Heartbeats keep the first call's lease, so later duplicates still find it.
    sleep(Duration::from_secs(120)).await;
    assert!(held.lease().believed_held());
    run(&engine, of("k", &[1, 1]), 4).await;
    assert_eq!(verdicts.take(), [ShadowVerdict::InFlight]);
    let payload = Payload::new(CodecId::BYTES, 0, b"x");
    assert!(matches!(held.complete(payload).await, CompletionResult::Recorded));
    assert_eq!(counters.read().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn ctx_6_an_error_or_a_drop_frees_the_key_as_with_a_guard() {
    let World { engine, verdicts, .. } = world();
    let ctx = of("k", &[1, 1]);
    let failed = engine.execute(ctx.clone(), || async { Err::<u32, _>("no") }).await;
    assert!(matches!(failed, Err(ExecuteError::Action("no"))), "{failed:?}");
    hold(&engine, &ctx).await.release().await.unwrap();
    run(&engine, ctx.clone(), 1).await;
    assert_eq!(verdicts.take(), [ShadowVerdict::Executed; 3]);
    let tombstone = of("t", &[1, 1]);
    let done = hold(&engine, &tombstone).await.complete_tombstone(Tombstone::new()).await;
    assert!(matches!(done, CompletionResult::Recorded), "{done:?}");
    run(&engine, tombstone, 2).await;
    assert_eq!(verdicts.take(), [ShadowVerdict::Executed, ShadowVerdict::NotReplayable]);
}

#[tokio::test(start_paused = true)]
async fn ctx_6_a_store_that_is_away_blocks_nothing() {
    let World { engine, faults, verdicts, .. } = world_with(|config| {
        config.completion_failure_policy = CompletionFailurePolicy::Propagate;
    });
    faults.fail_next(Operation::Complete, 1, Fault::Refused);
    run(&engine, of("a", &[1, 1]), 1).await;
    faults.begin_outage(Outage::Refuse);
    run(&engine, of("b", &[1, 1]), 2).await;
    faults.end_outage();
    let refused = ShadowVerdict::Refused(ErrorKind::Unavailable);
    assert_eq!(verdicts.take(), [ShadowVerdict::Executed, refused]);
    faults.begin_outage(Outage::Swallow);
    let began = Instant::now();
    for value in 0..20 {
        run(&engine, of("c", &[1, 1]), value).await;
    }
    // Until the circuit opens, each call waits for half of the operation timeout. After that, at
    // most one call at a time waits.
    assert!(began.elapsed() <= Duration::from_millis(20 * 2_500), "{:?}", began.elapsed());
    assert_eq!(verdicts.take(), [refused; 20]);
}

/// The guard would not have run these calls, because it would not have got an answer. They leave
/// nothing in the store, even if the store has granted the lease or grants it later.
#[tokio::test(start_paused = true)]
async fn ctx_6_acq_11_a_shadow_acquire_whose_answer_is_lost_leaves_no_lease() {
    let (limit, refused) =
        (Duration::from_millis(2_500), ShadowVerdict::Refused(ErrorKind::Unavailable));
    for fault in [Fault::AnswerLost, Fault::AnswerSwallowed] {
        for is_dropped in [false, true] {
            let World { engine, store, faults, verdicts, .. } = world();
            let ctx = of("k", &[1, 1]);
            faults.fail_next(Operation::Acquire, 1, fault);
            let began = Instant::now();
            if is_dropped {
                let call = engine.execute(ctx.clone(), || sleep_and_return(limit * 4));
                timeout(limit / 2, call).await.unwrap_err();
            } else {
                run(&engine, ctx.clone(), 1).await;
                assert_eq!(verdicts.take(), [refused]);
            }
            assert!(began.elapsed() <= limit, "{fault:?}: the work waited for the store");
            assert_eq!(faults.injected(), 1, "{fault:?}");
            sleep(limit * 2).await;
            let left = store.peek(ctx.identity()).await.unwrap();
            assert!(matches!(left, Peeked::Absent), "{fault:?}, dropped: {is_dropped}: {left:?}");
            run(&engine, ctx, 2).await;
        }
    }
}

async fn sleep_and_return(duration: Duration) -> Result<u32, &'static str> {
    sleep(duration).await;
    Ok(1)
}

#[tokio::test(start_paused = true)]
async fn ctx_6_acq_11_a_shadow_acquire_that_the_store_executes_late_leaves_no_lease() {
    let World { engine, store, faults, .. } = world();
    let ctx = of("k", &[1, 1]);
    faults.begin_outage(Outage::Stall);
    run(&engine, ctx.clone(), 1).await;
    sleep(Duration::from_secs(10)).await;
    faults.end_outage();
    sleep(Duration::from_secs(1)).await;
    let left = store.peek(ctx.identity()).await.unwrap();
    assert!(matches!(left, Peeked::Absent), "{left:?}");
    assert_eq!(engine.shutdown(Duration::from_secs(60)).await, 0);
}

#[tokio::test(start_paused = true)]
async fn ctx_6_the_report_and_the_lease_say_that_nothing_guards() {
    let World { engine, verdicts, .. } = world_with(|config| {
        config.completion_failure_policy = CompletionFailurePolicy::Propagate;
    });
    let report = engine
        .call(of("k", &[1, 1]))
        .report(|lease| async move {
            assert!(lease.confirm().await.unwrap());
            Ok::<_, &str>(1)
        })
        .await
        .unwrap();
    assert_eq!((report.outcome, report.recorded), (Outcome::Executed(1), Recorded::No));
    assert_eq!(verdicts.take(), [ShadowVerdict::Executed]);
}

#[cfg(feature = "config")]
#[test]
fn ctx_6_a_start_warns_of_each_scope_in_shadow_mode() {
    let warnings = crate::config::Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        world_with(|config| {
            let on = ScopeConfig { shadow: Some(false), ..ScopeConfig::default() };
            config.scopes.insert("on".to_owned(), on);
        })
    });
    let said = warnings.0.lock().unwrap().join("\n");
    assert_eq!(said.matches("this scope is in shadow mode").count(), 1, "{said}");
    assert!(said.contains("scope=\"told\""), "{said}");
}

#[tokio::test(start_paused = true)]
async fn ctx_6_a_ttl_that_the_store_refuses_stops_no_call() {
    let mut store = Noted::new();
    store.max_duration = Duration::from_secs(1);
    let mut config = IdempotencyConfig::default();
    let watched = ScopeConfig { shadow: Some(true), ..ScopeConfig::default() };
    config.scopes.insert(WATCHED.to_owned(), watched);
    let engine = IdempotencyEngine::builder(SharedStore::new(store)).config(config);
    run(&engine.build().unwrap(), of("k", &[1, 1]), 1).await;
}
