// SPDX-License-Identifier: MIT OR Apache-2.0
//! The note that the engine adds to each acquire (REC-2).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::store::{
    AcquireRequest, Acquired, HolderNote, Inspect, LiveLease, Peeked, RecordSummary, ScanCursor,
    ScanPage, StoreProfile, StoreStats, TraceContext,
};
use retryproof_core::{
    EngineBuilder, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, IdempotencyStore,
    Identity, Outcome, Result, SharedStore,
};
use retryproof_memory::MemoryStore;

/// A store that seems to be shared with other processes, and that keeps the acquires that it
/// receives.
#[derive(Debug, Clone, Default)]
struct Watched {
    inner: Arc<MemoryStore>,
    requests: Arc<Mutex<Vec<AcquireRequest>>>,
    immediate: bool,
}

impl Watched {
    fn engine(&self) -> EngineBuilder {
        IdempotencyEngine::builder(SharedStore::builder(self.clone()).with_inspect().build())
    }

    /// Returns the notes of the acquires so far, and checks that each note names the owner of its
    /// request.
    fn notes(&self) -> Vec<Option<HolderNote>> {
        let requests = self.requests.lock();
        requests
            .iter()
            .map(|request| {
                let note = request.holder.as_ref()?;
                let read = HolderNote::of_owner(note.as_bytes(), request.owner);
                assert_eq!(read.as_ref(), Some(note), "the note of another owner");
                assert_eq!(note.lease(), Some(request.lease));
                read
            })
            .collect()
    }

    fn only_note(&self) -> HolderNote {
        let notes: [_; 1] = self.notes().try_into().expect("one acquire");
        notes.into_iter().flatten().next().expect("a note")
    }
}

impl IdempotencyStore for Watched {
    retryproof_testkit::forward!(inner: peek, wait_for_change, extend, complete, release);

    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.requests.lock().push(req.clone());
        self.inner.acquire(id, req).await
    }

    fn profile(&self) -> StoreProfile {
        let profile = self.inner.profile();
        if self.immediate { profile } else { profile.without_immediate() }
    }
}

impl Inspect for Watched {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        self.inner.get(id).await
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.inner.stats().await
    }

    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        self.inner.scan(after, limit).await
    }
}

fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("holder", key)
        .lease(Duration::from_millis(1_500))
        .wait_timeout(Duration::ZERO)
        .build()
        .expect("the context should be valid")
}

fn instance(name: &str) -> IdempotencyConfig {
    let mut config = IdempotencyConfig::default();
    config.instance = Some(name.to_owned());
    config
}

async fn execute(engine: &IdempotencyEngine, key: &str) -> Outcome<u32> {
    engine.execute(ctx(key), || async { Ok::<_, io::Error>(7) }).await.expect("the call succeeds")
}

tokio::task_local! {
    static TRACE: TraceContext;
}

fn trace(byte: u8) -> TraceContext {
    TraceContext { trace_id: [byte; 16], span_id: [byte; 8], sampled: byte % 2 == 1 }
}

fn current() -> Option<TraceContext> {
    TRACE.try_with(|trace| *trace).ok()
}

#[tokio::test]
async fn rec_2_by_default_a_note_names_host_and_process() {
    let store = Watched::default();
    let engine = store.engine().build().unwrap();
    assert!(matches!(execute(&engine, "k").await, Outcome::Executed(..)));
    let note = store.only_note();
    let (host, process) = note.label().unwrap().rsplit_once(':').expect("host:pid");
    assert!(!host.is_empty());
    assert_eq!(process, std::process::id().to_string());
    assert_eq!(note.lease(), Some(Duration::from_millis(1_500)));
    assert_eq!(note.trace(), None);
    assert!(note.as_bytes().len() <= HolderNote::MAX_BYTES);
}

#[tokio::test]
async fn rec_2_every_acquire_sends_a_note_of_its_own() {
    let store = Watched::default();
    let engine = store.engine().current_trace(current).build().unwrap();
    let _ = TRACE.scope(trace(1), execute(&engine, "a")).await;
    let _ = TRACE.scope(trace(2), execute(&engine, "a")).await;
    let _ = execute(&engine, "b").await;
    let traces: Vec<_> = store.notes().into_iter().map(|note| note.unwrap().trace()).collect();
    assert_eq!(traces, [Some(trace(1)), Some(trace(2)), None]);
    // The replay has changed nothing: the note is still that of the call that ran the action.
    let seen = engine.store().get(ctx("a").identity()).await.unwrap().expect("a record");
    assert_eq!(seen.holder.and_then(|note| note.trace()), Some(trace(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rec_2_the_trace_is_that_of_the_task_that_calls() {
    let store = Watched::default();
    let engine = store.engine().current_trace(current).build().unwrap();
    let calls: Vec<_> = (0..32_u8)
        .map(|at| {
            let engine = engine.clone();
            tokio::spawn(TRACE.scope(trace(at), async move {
                let _ = execute(&engine, &format!("k{at}")).await;
                ctx(&format!("k{at}"))
            }))
        })
        .collect();
    for (at, call) in (0..32_u8).zip(calls) {
        let ctx = call.await.unwrap();
        let seen = engine.store().get(ctx.identity()).await.unwrap().expect("a record");
        assert_eq!(seen.holder.and_then(|note| note.trace()), Some(trace(at)), "call {at}");
    }
    assert_eq!(store.notes().len(), 32);
}

#[tokio::test]
async fn rec_2_instance_reaches_a_busy_answer_and_a_result() {
    let store = Watched::default();
    let engine = store.engine().config(instance("payments-7f9c")).build().unwrap();
    let (stranger, label) = (engine.clone(), |note: Option<&HolderNote>| {
        note.and_then(HolderNote::label).map(str::to_owned)
    });
    let id = ctx("k").identity().clone();
    let expected = Some("payments-7f9c".to_owned());
    let outcome = engine
        .execute(ctx("k"), || async {
            let Ok(Peeked::Busy(LiveLease { holder, .. })) = stranger.store().peek(&id).await
            else {
                panic!("the key should be busy")
            };
            assert_eq!(label(holder.as_ref()), expected);
            Ok::<_, io::Error>(7)
        })
        .await
        .unwrap();
    assert!(matches!(outcome, Outcome::Executed(..)));
    let Ok(Peeked::Complete(stored)) = engine.store().peek(&id).await else {
        panic!("the key should be complete")
    };
    assert_eq!(label(stored.holder()), expected);
}

#[cfg(feature = "config")]
#[tokio::test]
async fn rec_2_instance_comes_from_the_configuration() {
    let store = Watched::default();
    let file = Some(("app.toml", "[idempotency]\ninstance = 'pod-7'"));
    let config = IdempotencyConfig::from_sources(file, []);
    let engine = store.engine().config(config.unwrap()).build().unwrap();
    let _ = execute(&engine, "k").await;
    assert_eq!(store.only_note().label(), Some("pod-7"));
}

#[tokio::test]
async fn rec_2_a_store_in_memory_gets_a_note_for_a_trace_alone() {
    let store = Watched { immediate: true, ..Watched::default() };
    let engine = store.engine().config(instance("unused")).current_trace(current).build().unwrap();
    let _ = execute(&engine, "plain").await;
    let _ = TRACE.scope(trace(3), execute(&engine, "traced")).await;
    let notes = store.notes();
    assert_eq!(notes[0], None);
    let note = notes[1].as_ref().expect("a note");
    assert_eq!((note.trace(), note.label()), (Some(trace(3)), None));
}

#[tokio::test]
async fn rec_2_a_trace_function_that_panics_fails_no_call() {
    for immediate in [false, true] {
        let store = Watched { immediate, ..Watched::default() };
        let engine = store.engine().current_trace(|| panic!("no trace today")).build().unwrap();
        assert!(matches!(execute(&engine, "k").await, Outcome::Executed(..)));
        assert!(matches!(execute(&engine, "k").await, Outcome::Replayed(..)));
        let notes = store.notes();
        assert_eq!(notes.len(), 2);
        for note in notes {
            assert_eq!(note.is_none(), immediate, "a shared store still gets the label");
            assert_eq!(note.and_then(|note| note.trace()), None);
        }
    }
}
