// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events that observers receive about calls without a lease, about waits and about the store
//! agree with the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::clock::{Clock, Instant, SystemClock};
use retryproof_core::observe::{
    CallEvent, Counters, LeaseEvent, Loss, Observer, PurgeEvent, StoreCallEvent, WaitEnd,
};
use retryproof_core::store::{HolderNote, TraceContext};
use retryproof_core::{
    Acquisition, Attempt, BytesCodec, CodecId, Error, ErrorKind, IdempotencyConfig,
    IdempotencyEngine, Identity, OwnerId, Payload, SharedStore, Tombstone,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{Fault, FaultStore, Faults, Operation, Outage};
use tokio::time::sleep;

use self::support::{Heard, Noted, faulty, held, observed, of, quick, succeed};
use crate::outcomes::Told;

mod purge_claim;
pub(crate) mod support;

const MS: Duration = Duration::from_millis(1);

/// Counts the reads of the clock.
#[derive(Debug, Clone, Default)]
struct CountedClock(Arc<AtomicUsize>);

impl Clock for CountedClock {
    fn now(&self) -> Instant {
        self.0.fetch_add(1, Ordering::Relaxed);
        SystemClock.now()
    }
}

#[tokio::test(start_paused = true)]
async fn run_8_run_7_observers_and_the_log_get_one_and_the_same_outcome_of_each_call() {
    let (told, _listening) = Told::listen();
    let (engine, heard, faults) = faulty();
    // If the call had a lease, the log line has more fields than the event.
    let told = |expected: &str| {
        let (log, ends) = (told.outcomes(), heard.ends());
        assert_eq!(ends, [expected]);
        assert_eq!(log.len(), 1, "{expected}: {log:?}");
        let same = log[0] == expected || log[0].starts_with(&format!("{expected} attempt="));
        assert!(same, "{expected}: {log:?}");
    };
    drop(engine.execute(quick("k"), succeed).await);
    told("executed");
    drop(engine.execute(quick("k"), succeed).await);
    told("replayed");
    drop(engine.execute(of("k", 2, Duration::ZERO), succeed).await);
    told("mismatch");
    // The outcome depends on the codec of the caller that opens the record.
    let other = engine.call(quick("k")).codec(BytesCodec);
    assert!(other.execute(|| async { Ok::<_, &str>(vec![1_u8]) }).await.is_err());
    told("refused error.type=Codec");
    for (fingerprint, expected) in [(1, "replayed"), (2, "mismatch")] {
        drop(engine.try_acquire(&of("k", fingerprint, Duration::ZERO)).await);
        told(expected);
        drop(engine.try_acquire_tracked(&of("k", fingerprint, Duration::ZERO)).await);
        told(expected);
        drop(engine.spawn(of("k", fingerprint, Duration::ZERO), succeed).await);
        told(expected);
    }
    let _ = held(&engine, "t").await.complete_tombstone(Tombstone::new()).await;
    told("executed");
    drop(engine.execute(quick("t"), succeed).await);
    told("not_replayable");
    drop(engine.execute(of("t", 2, Duration::ZERO), succeed).await);
    told("mismatch");
    let foreign = Payload::new(CodecId::JSON, 0, b"no number");
    let _ = held(&engine, "j").await.complete(foreign).await;
    told("executed");
    drop(engine.execute(quick("j"), succeed).await);
    told("refused error.type=Codec");
    let holder = held(&engine, "b").await;
    drop(engine.execute(quick("b"), succeed).await);
    told("in_flight");
    holder.release().await.unwrap();
    told("released");
    drop(engine.execute(quick("f"), || async { Err::<u32, _>("no") }).await);
    told("failed");
    faults.fail_next(Operation::Complete, 1_000, Fault::Refused);
    drop(engine.execute(quick("u"), succeed).await);
    sleep(Duration::from_secs(1)).await;
    told("executed");
    faults.clear();
    engine.health().await.unwrap();
    faults.begin_outage(Outage::Refuse);
    drop(engine.execute(quick("away"), succeed).await);
    told("refused error.type=Unavailable");
}

#[tokio::test(start_paused = true)]
async fn run_8_run_7_a_call_that_the_engine_refuses_before_the_store_is_told_too() {
    let (told, _listening) = Told::listen();
    let mut store = Noted::new();
    store.max_duration = Duration::from_secs(1);
    let (engine, heard) = observed(SharedStore::new(store));
    let refused = "refused error.type=Invalid";
    assert!(engine.execute(quick("k"), succeed).await.is_err());
    assert_eq!(
        (told.outcomes(), heard.ends()),
        (vec![refused.to_owned()], vec![refused.to_owned()])
    );
    // HTTP calls begin with `begin_acquire`. Here, its future is never polled.
    drop(engine.begin_acquire(&quick("k")));
    assert_eq!(heard.ends().len(), 0, "not polled");
    engine.shutdown(Duration::ZERO).await;
    let (engine, heard) = observed(MemoryStore::new());
    engine.shutdown(Duration::ZERO).await;
    assert!(engine.execute(quick("k"), succeed).await.is_err());
    assert_eq!(heard.ends(), ["refused error.type=ShuttingDown"]);
}

#[tokio::test(start_paused = true)]
async fn run_8_each_call_that_waits_is_told_once_how_long_and_how_it_ended() {
    let (engine, heard) = observed(MemoryStore::new());
    let wait = |key: &'static str, ms: u32| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.try_acquire(&of(key, 1, ms * MS)).await })
    };
    let holder = held(&engine, "k").await;
    let (short, dropped, long) = (wait("k", 20), wait("k", 900), wait("k", 900));
    sleep(30 * MS).await;
    assert_eq!(heard.waits(), ["waiting", "waiting", "waiting", "in_flight after 20"]);
    assert!(matches!(short.await.unwrap(), Ok(Acquisition::InFlight(_))));
    assert_eq!((heard.ends(), *heard.took.lock()), (vec!["in_flight".to_owned()], 20 * MS));
    dropped.abort();
    assert!(dropped.await.is_err());
    assert_eq!(heard.waits(), ["dropped after 30"]);
    sleep(10 * MS).await;
    let _ = holder.complete(Payload::new(CodecId::JSON, 0, b"1")).await;
    assert!(matches!(long.await.unwrap(), Ok(Acquisition::Complete(_))));
    assert_eq!(heard.waits(), ["complete after 40"]);
    assert_eq!(heard.ends(), ["executed", "replayed"]);
    assert_eq!(*heard.took.lock(), 40 * MS, "of the whole call");

    // If a wait ends in a grant, the lease's event says how long the call waited.
    #[derive(Debug, Default)]
    struct Grants(Mutex<Vec<(Attempt, Duration)>>);
    impl Observer for Grants {
        fn acquired(&self, event: LeaseEvent<'_>) {
            self.0.lock().push((event.attempt, event.waited));
        }
    }
    let grants = Arc::<Grants>::default();
    let taker = IdempotencyEngine::builder(engine.store().clone())
        .observer(Arc::clone(&grants))
        .observer(Arc::clone(&heard))
        .build()
        .unwrap();
    let held_now = held(&engine, "r").await;
    let waiting = tokio::spawn({
        let taker = taker.clone();
        async move { taker.try_acquire(&of("r", 1, 900 * MS)).await }
    });
    sleep(50 * MS).await;
    held_now.release().await.unwrap();
    let granted = waiting.await.unwrap();
    assert!(matches!(granted, Ok(Acquisition::Granted(_))));
    assert_eq!(heard.waits(), ["waiting", "granted after 50"]);
    assert_eq!(*grants.0.lock(), [(Attempt::First, 50 * MS)]);
    drop(granted);
    sleep(200 * MS).await;
    drop(taker.try_acquire(&quick("r")).await);
    assert_eq!(grants.0.lock()[1], (Attempt::Takeover, Duration::ZERO));
    // A call that does not wait reports no wait.
    let _holder = held(&engine, "w").await;
    assert!(matches!(engine.try_acquire(&quick("w")).await, Ok(Acquisition::InFlight(_))));
    assert_eq!(heard.waits(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn run_8_rec_2_a_replay_hands_over_the_note_of_the_executing_holder() {
    let trace = TraceContext { trace_id: [7; 16], span_id: [9; 8], sampled: true };
    for expected in [Some(trace), None] {
        let mut store = Noted::new();
        store.note =
            expected.map(|trace| HolderNote::new(OwnerId::new(), MS, Some(trace), "host:1"));
        let (engine, heard) = observed(SharedStore::new(store));
        for _ in 0..2 {
            let _ = engine.execute(quick("k"), succeed).await.unwrap();
        }
        assert_eq!(*heard.traces.lock(), [expected]);
    }
    // In this engine, the trace comes from a note that the engine wrote and the memory store kept.
    let heard = Arc::<Heard>::default();
    let current = || Some(TraceContext { trace_id: [7; 16], span_id: [9; 8], sampled: true });
    let engine = IdempotencyEngine::builder(MemoryStore::new())
        .observer(Arc::clone(&heard))
        .current_trace(current)
        .build()
        .unwrap();
    for _ in 0..2 {
        let _ = engine.execute(quick("k"), succeed).await.unwrap();
    }
    assert_eq!(*heard.traces.lock(), [Some(trace)]);
}

#[tokio::test(start_paused = true)]
async fn run_8_each_store_call_is_told_with_its_operation_duration_and_error() {
    let (engine, heard, faults) = faulty();
    drop(engine.execute(quick("k"), succeed).await);
    assert_eq!(heard.calls(), ["acquire", "complete"]);
    drop(engine.execute(quick("k"), succeed).await);
    assert_eq!(heard.calls(), ["acquire"]);
    drop(engine.execute(quick("f"), || async { Err::<u32, _>("no") }).await);
    assert_eq!(heard.calls(), ["acquire", "release"]);
    engine.health().await.unwrap();
    assert_eq!(heard.calls(), ["peek"]);
    let holder = held(&engine, "h").await;
    assert!(holder.lease().confirm().await.unwrap());
    sleep(60 * MS).await;
    assert_eq!(heard.calls(), ["acquire", "extend", "extend"], "by hand and by heartbeat");
    // The wait itself does not count as a store call.
    assert!(matches!(engine.try_acquire(&of("h", 1, 10 * MS)).await, Ok(Acquisition::InFlight(_))));
    assert_eq!(heard.calls(), ["acquire", "acquire"]);
    drop(holder);
    // After a lost answer, the acquire is repeated once (ACQ-9), and each attempt is reported.
    faults.fail_next(Operation::Acquire, 1, Fault::AnswerLost);
    drop(engine.execute(quick("l"), succeed).await);
    assert_eq!(heard.calls(), ["acquire: Unavailable", "acquire", "complete"]);
    // A call that gets no answer in time is cut off.
    faults.fail_next(Operation::Peek, 1, Fault::Swallowed);
    assert!(engine.health().await.is_err());
    assert_eq!(heard.calls(), ["peek: Unavailable in 5000"]);
    faults.fail_next(Operation::Acquire, 1, Fault::Swallowed);
    assert!(engine.execute(quick("s"), succeed).await.is_err());
    assert_eq!(heard.calls()[0], "acquire: Unavailable in 5000");

    // A store that answers immediately is polled in place, also by `begin_acquire`.
    let (engine, heard) = observed(MemoryStore::new());
    for expected in [&["acquire", "complete"][..], &["acquire"]] {
        drop(engine.execute(quick("k"), succeed).await);
        assert_eq!(heard.calls(), expected);
        drop(engine.begin_acquire(&quick("k")));
        assert_eq!(heard.calls(), ["acquire"]);
    }
}

#[tokio::test(start_paused = true)]
async fn run_8_sto_5_the_circuit_opens_once_and_closes_once() {
    let (engine, heard, faults) = faulty();
    faults.begin_outage(Outage::Refuse);
    for _ in 0..12 {
        assert!(engine.health().await.is_err());
    }
    assert_eq!(*heard.circuit.lock(), ["opened"]);
    faults.end_outage();
    for _ in 0..3 {
        engine.health().await.unwrap();
    }
    assert_eq!(*heard.circuit.lock(), ["opened", "closed"]);
    // Four failures in a row do not open the circuit.
    faults.fail_next(Operation::Peek, 4, Fault::Refused);
    for _ in 0..5 {
        drop(engine.health().await);
    }
    assert_eq!(*heard.circuit.lock(), ["opened", "closed"]);
}

#[tokio::test(start_paused = true)]
async fn run_8_sto_4_a_purge_round_is_told_with_what_it_deleted_and_whether_it_kept_up() {
    let store = Noted::new();
    let heard = Arc::<Heard>::default();
    let mut config = IdempotencyConfig::default();
    config.purge.interval = Duration::from_secs(1);
    let away = || Err(Error::unavailable("as told"));
    store.batches.lock().extend([Ok(1_000), Ok(1_000), Ok(7)]);
    store.batches.lock().extend([Ok(1_000), away()]);
    store.batches.lock().extend(std::iter::repeat_with(|| Ok(1_000)).take(10));
    let engine = IdempotencyEngine::builder(SharedStore::builder(store).with_purge().build())
        .config(config)
        .observer(Arc::clone(&heard))
        .build()
        .unwrap();
    assert_eq!(engine.activity().purged_ago, None);
    assert_eq!(engine.purge().await.unwrap(), Some(2_007));
    assert_eq!(engine.activity().purged_ago, Some(Duration::ZERO));
    assert!(engine.purge().await.is_err());
    assert_eq!(engine.activity().purged_ago, Some(200 * MS), "a failed round does not count");
    assert_eq!(engine.purge().await.unwrap(), Some(10_000));
    let rounds: Vec<_> =
        heard.purges.lock().iter().map(|e| (e.deleted, e.took, e.kept_up)).collect();
    let expected = [(2_007, 300 * MS, true), (1_000, 200 * MS, false), (10_000, 1_100 * MS, false)];
    assert_eq!(rounds, expected);
    let calls = heard.calls();
    assert_eq!(calls.len(), 3 + 2 + 11);
    assert_eq!((&*calls[0], &*calls[4]), ("purge in 100", "purge: Unavailable in 100"));
    // A store that cannot purge has no rounds.
    let (engine, heard) = observed(SharedStore::new(MemoryStore::new()));
    assert_eq!(engine.purge().await.unwrap(), None);
    assert_eq!(engine.activity().purged_ago, None);
    assert_eq!((heard.purges.lock().len(), heard.calls().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn run_8_without_an_observer_nothing_is_measured() {
    let reads = |observed: bool| async move {
        let clock = CountedClock::default();
        let builder = IdempotencyEngine::builder(MemoryStore::new()).clock(clock.clone());
        let builder = if observed { builder.observer(Counters::new()) } else { builder };
        let engine = builder.build().unwrap();
        drop(engine.execute(quick("k"), succeed).await);
        clock.0.store(0, Ordering::Relaxed);
        drop(engine.execute(quick("k"), succeed).await);
        let of_execute = clock.0.swap(0, Ordering::Relaxed);
        drop(engine.begin_acquire(&quick("k")));
        (of_execute, clock.0.load(Ordering::Relaxed))
    };
    assert_eq!(reads(false).await, (1, 1), "the acquire's own");
    assert_eq!(reads(true).await, (3, 2), "and one for each event");
}

/// Panics at the events about losses, waits, the store, and calls without a lease.
#[derive(Debug)]
struct Grumpy;

impl Observer for Grumpy {
    fn loss_noticed(&self, _: LeaseEvent<'_>, _: Loss) {
        panic!("loss");
    }
    fn waiting(&self, _: &Identity) {
        panic!("waiting");
    }
    fn waited(&self, _: &Identity, _: Duration, _: WaitEnd) {
        panic!("waited");
    }
    fn replayed(&self, _: CallEvent<'_>, _: Option<&HolderNote>) {
        panic!("replayed");
    }
    fn mismatch(&self, _: CallEvent<'_>) {
        panic!("mismatch");
    }
    fn not_replayable(&self, _: CallEvent<'_>) {
        panic!("not replayable");
    }
    fn in_flight(&self, _: CallEvent<'_>, _: Duration) {
        panic!("in flight");
    }
    fn refused(&self, _: CallEvent<'_>, _: ErrorKind) {
        panic!("refused");
    }
    fn store_called(&self, _: StoreCallEvent) {
        panic!("store called");
    }
    fn circuit_opened(&self) {
        panic!("opened");
    }
    fn circuit_closed(&self) {
        panic!("closed");
    }
    fn purged(&self, _: PurgeEvent) {
        panic!("purged");
    }
}

#[tokio::test(start_paused = true)]
async fn run_8_a_panic_of_an_observer_changes_no_answer_and_no_count() {
    let (faults, counters) = (Faults::none(), Counters::new());
    let store = FaultStore::new(Noted::new(), faults.clone());
    let engine = IdempotencyEngine::builder(SharedStore::builder(store).with_purge().build())
        .observer(Grumpy)
        .observer(Arc::clone(&counters))
        .build()
        .unwrap();
    drop(engine.execute(quick("k"), succeed).await.unwrap());
    assert!(engine.execute(quick("k"), succeed).await.unwrap().is_replayed());
    assert!(engine.execute(of("k", 2, Duration::ZERO), succeed).await.is_err());
    let _ = held(&engine, "t").await.complete_tombstone(Tombstone::new()).await;
    assert!(engine.execute(quick("t"), succeed).await.is_err());
    let holder = held(&engine, "h").await;
    let waited = engine.execute(of("h", 1, 10 * MS), succeed).await.unwrap();
    assert!(waited.is_in_flight());
    drop(holder);
    assert_eq!(engine.purge().await.unwrap(), Some(0));
    faults.begin_outage(Outage::Refuse);
    for _ in 0..6 {
        assert!(engine.execute(quick("a"), succeed).await.is_err());
    }
    faults.end_outage();
    sleep(Duration::from_secs(6)).await;
    engine.health().await.unwrap();
    let counts = counters.read();
    assert_eq!(
        (counts.replayed, counts.mismatch, counts.not_replayable, counts.in_flight),
        (1, 1, 1, 1)
    );
    assert_eq!((counts.waiting, counts.waited, counts.purged, counts.refused), (1, 1, 1, 6));
    assert_eq!((counts.circuit_opened, counts.circuit_closed), (1, 1));
    assert!(counts.store_called > 10, "{counts:?}");
}
