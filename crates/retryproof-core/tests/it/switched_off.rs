// SPDX-License-Identifier: MIT OR Apache-2.0
//! CTX-5: in a scope with `enabled = false`, every call runs without the store, and is reported as
//! unguarded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::config::ScopeConfig;
use retryproof_core::observe::Counters;
use retryproof_core::{
    Acquisition, Attempt, CodecId, CompletionFailurePolicy, CompletionResult, ErrorKind,
    ExecuteError, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, Outcome, Payload,
    Recorded, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{FaultStore, Faults, Outage};
use tokio::sync::Barrier;

use crate::events::support::Noted;
use crate::outcomes::Told;

/// The scope that is switched off; the log's listener expects this name.
const OFF: &str = "told";

struct World {
    engine: IdempotencyEngine,
    faults: Faults,
    counters: Arc<Counters>,
}

fn world_with(with: impl FnOnce(&mut IdempotencyConfig)) -> World {
    let (faults, counters) = (Faults::none(), Counters::new());
    let store = SharedStore::new(FaultStore::new(MemoryStore::new(), faults.clone()));
    let mut config = IdempotencyConfig::default();
    let off = ScopeConfig { enabled: Some(false), ..ScopeConfig::default() };
    config.scopes.insert(OFF.to_owned(), off);
    with(&mut config);
    let engine = IdempotencyEngine::builder(store)
        .config(config)
        .observer(Arc::clone(&counters))
        .build()
        .unwrap();
    World { engine, faults, counters }
}

fn world() -> World {
    world_with(|_| {})
}

fn of(scope: &'static str, key: &str) -> IdempotencyContext {
    IdempotencyContext::builder(scope, format!("canary-{key}")).build().unwrap()
}

async fn run(engine: &IdempotencyEngine, scope: &'static str, value: u32) -> Outcome<u32> {
    engine.execute(of(scope, "k"), || async { Ok::<_, &str>(value) }).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn ctx_5_every_call_of_a_scope_that_is_off_runs_without_the_store() {
    let World { engine, faults, counters } = world();
    for value in 1..4 {
        assert_eq!(run(&engine, OFF, value).await, Outcome::Executed(value));
    }
    assert_eq!(faults.calls(), 0, "the store is not called");
    assert_eq!(run(&engine, "on", 1).await, Outcome::Executed(1));
    assert_eq!(run(&engine, "on", 2).await, Outcome::Replayed(1), "other scopes are guarded");
    let counts = counters.read();
    assert_eq!((counts.unguarded, counts.acquired, counts.completed), (3, 1, 1));
    assert_eq!((counts.replayed, counts.waiting), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn ctx_5_a_scope_that_is_off_runs_while_the_store_is_away() {
    let World { engine, faults, .. } = world();
    faults.begin_outage(Outage::Refuse);
    assert_eq!(run(&engine, OFF, 1).await, Outcome::Executed(1));
    let on = engine.execute(of("on", "k"), || async { Ok::<_, &str>(1) }).await;
    assert!(matches!(on, Err(ExecuteError::Store(_))), "{on:?}");
}

#[tokio::test(start_paused = true)]
async fn ctx_5_calls_of_one_key_run_at_the_same_time() {
    let World { engine, .. } = world();
    let (both, runs) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    let call = || {
        let (both, runs) = (Arc::clone(&both), Arc::clone(&runs));
        engine.spawn(of(OFF, "k"), move || async move {
            both.wait().await;
            runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, &str>(1_u32)
        })
    };
    let (one, two) = tokio::join!(call(), call());
    assert_eq!((one.unwrap(), two.unwrap()), (Outcome::Executed(1), Outcome::Executed(1)));
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(engine.activity().running, 0);
}

#[tokio::test(start_paused = true)]
async fn ctx_5_the_report_and_the_lease_say_that_nothing_guards() {
    let World { engine, counters, .. } = world_with(|config| {
        config.completion_failure_policy = CompletionFailurePolicy::Propagate;
    });
    let call = engine.call(of(OFF, "k"));
    let report = call.report(|lease| async move {
        assert!(!lease.is_guarded());
        assert_eq!(lease.attempt(), Attempt::First);
        assert!(lease.believed_held() && lease.confirm().await.unwrap());
        Ok::<_, &str>(1)
    });
    let report = report.await.unwrap();
    assert_eq!((report.outcome, report.recorded), (Outcome::Executed(1), Recorded::No));
    let held = match engine.try_acquire(&of(OFF, "k")).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    };
    let completed = held.complete(Payload::new(CodecId::BYTES, 0, b"x")).await;
    assert!(matches!(completed, CompletionResult::Recorded), "{completed:?}");
    assert_eq!(counters.read().unguarded, 2);
    match engine.try_acquire(&of("on", "k")).await.unwrap() {
        Acquisition::Granted(held) => assert!(held.lease().is_guarded()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn ctx_5_run_7_run_8_an_unguarded_call_is_one_event_however_it_ends() {
    let (told, _listening) = Told::listen();
    let World { engine, counters, .. } = world();
    assert_eq!(run(&engine, OFF, 1).await, Outcome::Executed(1));
    let failed = engine.execute(of(OFF, "k"), || async { Err::<u32, _>("no") }).await;
    assert!(matches!(failed, Err(ExecuteError::Action("no"))), "the error comes back unchanged");
    let Acquisition::Granted(held) = engine.try_acquire(&of(OFF, "k")).await.unwrap() else {
        panic!("every call is granted");
    };
    drop(held);
    assert_eq!(told.outcomes(), ["unguarded attempt=first"; 3]);
    let counts = counters.read();
    assert_eq!((counts.unguarded, counts.failed, counts.completed, counts.lost), (3, 0, 0, 0));
    assert_eq!(counts.store_called, 0);
}

#[tokio::test(start_paused = true)]
async fn ctx_5_run_5_limits_and_shutdown_hold_without_a_guard() {
    let World { engine, .. } = world_with(|config| config.max_running = Some(1));
    let (started, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let first = {
        let (engine, started, end) = (engine.clone(), Arc::clone(&started), Arc::clone(&end));
        tokio::spawn(async move {
            let action = move || async move {
                started.wait().await;
                end.wait().await;
                Ok::<_, &str>(1_u32)
            };
            engine.spawn(of(OFF, "k"), action).await
        })
    };
    started.wait().await;
    let second = engine.spawn(of(OFF, "k"), || async { Ok::<_, &str>(2_u32) }).await;
    assert!(matches!(second, Err(ExecuteError::Store(_))), "`max-running` holds: {second:?}");
    let _ = end.wait().await;
    assert_eq!(first.await.unwrap().unwrap(), Outcome::Executed(1));
    assert_eq!(engine.shutdown(Duration::from_secs(1)).await, 0);
    let late = engine.execute(of(OFF, "k"), || async { Ok::<_, &str>(3_u32) }).await;
    assert!(matches!(late, Err(ExecuteError::Store(_))), "a shutdown holds: {late:?}");
}

#[tokio::test(start_paused = true)]
async fn ctx_5_the_limits_of_the_store_hold_without_a_guard() {
    let mut store = Noted::new();
    store.max_duration = Duration::from_secs(1);
    let mut config = IdempotencyConfig::default();
    config.scopes.entry(OFF.to_owned()).or_default().enabled = Some(false);
    let engine = IdempotencyEngine::builder(SharedStore::new(store)).config(config).build();
    let refused = engine.unwrap().execute(of(OFF, "k"), || async { Ok::<_, &str>(1_u32) }).await;
    let Err(ExecuteError::Store(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[cfg(feature = "config")]
#[test]
fn ctx_5_a_start_warns_of_each_scope_that_is_off() {
    let warnings = crate::config::Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        world_with(|config| {
            let off = ScopeConfig { enabled: Some(false), ..ScopeConfig::default() };
            config.scopes.insert("also".to_owned(), off);
            let on = ScopeConfig { enabled: Some(true), ..ScopeConfig::default() };
            config.scopes.insert("on".to_owned(), on);
        })
    });
    let said = warnings.0.lock().unwrap().join("\n");
    assert_eq!(said.matches("this scope is switched off").count(), 2, "{said}");
    assert!(said.contains("scope=\"also\"") && said.contains("scope=\"told\""), "{said}");
}
