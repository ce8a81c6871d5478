// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observers: every lease has exactly one terminal event, whatever its end, and a panicking
//! observer harms nothing.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::observe::{CallEvent, Counters, LeaseEvent, Loss, Observer, Phase};
use retryproof_core::store::HolderNote;
use retryproof_core::{
    Acquisition, CodecId, FencingToken, HeldLease, IdempotencyContext, IdempotencyEngine, Identity,
    OnDrop, Payload, Recorded, Tombstone,
};
use retryproof_memory::MemoryStore;
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);

/// The terminal events of each lease. The map's key includes the identity, because a token is
/// unique only within its identity.
#[derive(Debug, Default)]
struct Ends(Mutex<HashMap<(Identity, FencingToken), Vec<String>>>);

impl Ends {
    fn note(&self, event: LeaseEvent<'_>, what: String) {
        self.0.lock().entry((event.identity.clone(), event.token)).or_default().push(what);
    }
}

impl Observer for Ends {
    fn acquired(&self, event: LeaseEvent<'_>) {
        self.0.lock().entry((event.identity.clone(), event.token)).or_default();
    }

    fn completed(&self, event: LeaseEvent<'_>, recorded: Recorded) {
        self.note(event, format!("completed {recorded:?}"));
    }

    fn failed(&self, event: LeaseEvent<'_>, phase: Phase) {
        self.note(event, format!("failed {phase:?}"));
    }

    fn lost(&self, event: LeaseEvent<'_>) {
        self.note(event, "lost".to_owned());
    }
}

/// Panics at every event.
#[derive(Debug)]
struct Grumpy;

impl Observer for Grumpy {
    fn acquired(&self, _: LeaseEvent<'_>) {
        panic!("acquired");
    }

    fn completed(&self, _: LeaseEvent<'_>, _: Recorded) {
        panic!("completed");
    }

    fn failed(&self, _: LeaseEvent<'_>, _: Phase) {
        panic!("failed");
    }

    fn loss_noticed(&self, _: LeaseEvent<'_>, _: Loss) {
        panic!("loss");
    }

    fn replayed(&self, _: CallEvent<'_>, _: Option<&HolderNote>) {
        panic!("replayed");
    }
}

fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("observe", key)
        .lease(100 * MS)
        .wait_timeout(300 * MS)
        .build()
        .unwrap()
}

fn name(held: &HeldLease) -> (Identity, FencingToken) {
    (held.lease().identity().clone(), held.lease().token())
}

async fn granted(engine: &IdempotencyEngine, key: &str) -> HeldLease {
    match engine.try_acquire(&ctx(key)).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn run_2_acq_12_each_lease_has_exactly_one_terminal_event() {
    let ends = Arc::new(Ends::default());
    let engine =
        IdempotencyEngine::builder(MemoryStore::new()).observer(Arc::clone(&ends)).build().unwrap();
    let value = || Payload::new(CodecId::BYTES, 0, b"v");
    let mut expected = Vec::new();

    let held = granted(&engine, "complete").await;
    expected.push((name(&held), "completed Yes"));
    let _ = held.complete(value()).await;

    let held = granted(&engine, "tombstone").await;
    expected.push((name(&held), "completed Tombstone"));
    let _ = held.complete_tombstone(Tombstone::new()).await;

    let held = granted(&engine, "release").await;
    expected.push((name(&held), "failed Released"));
    held.release().await.unwrap();

    let held = granted(&engine, "hold").await;
    expected.push((name(&held), "failed Held"));
    held.hold();

    let mut tokens = Vec::new();
    let action = |lease: retryproof_core::Lease| {
        tokens.push((lease.identity().clone(), lease.token()));
        async { Err::<u32, _>("no") }
    };
    let _ = engine.execute_with(ctx("error"), action).await;
    expected.push((tokens.remove(0), "failed Action"));

    let action = |lease: retryproof_core::Lease| {
        tokens.push((lease.identity().clone(), lease.token()));
        lease.hold_on_error();
        async { Err::<u32, _>("sent, and no answer") }
    };
    let _ = engine.execute_with(ctx("held error"), action).await;
    expected.push((tokens.remove(0), "failed Held"));

    // The lease is lost: the holder hangs past its lease without a beat, and another owner takes
    // over.
    let config = {
        let mut config = retryproof_core::IdempotencyConfig::default();
        config.max_hold = 10 * MS;
        config
    };
    let hung = IdempotencyEngine::builder(engine.store().clone())
        .config(config)
        .observer(Arc::clone(&ends))
        .build()
        .unwrap();
    let held = granted(&hung, "lost").await;
    let lost = name(&held);
    sleep(150 * MS).await;
    let taker = granted(&engine, "lost").await;
    assert!(!held.lease().believed_held());
    let _ = held.complete(value()).await;
    let _ = taker.complete(value()).await;
    expected.push((lost, "lost"));

    // The call is dropped in the middle of the action.
    for (on_drop, end) in [(OnDrop::Release, "failed Released"), (OnDrop::Expire, "failed Dropped")]
    {
        let hang = |lease: retryproof_core::Lease| {
            tokens.push((lease.identity().clone(), lease.token()));
            pending::<Result<u32, &str>>()
        };
        let call = engine.call(ctx(&format!("{on_drop:?}"))).on_drop(on_drop);
        let _ = timeout(10 * MS, call.execute_with(hang)).await;
        expected.push((tokens.remove(0), end));
    }
    sleep(MS).await;

    let ends = ends.0.lock();
    for (lease, end) in &expected {
        assert_eq!(ends[lease], [*end], "{lease:?}");
    }
    for (lease, events) in ends.iter() {
        assert_eq!(events.len(), 1, "{lease:?}: {events:?}");
    }
    assert_eq!(ends.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn run_2_a_panicking_observer_harms_nothing() {
    let counters = Counters::new();
    let engine = IdempotencyEngine::builder(MemoryStore::new())
        .observer(Grumpy)
        .observer(Arc::clone(&counters))
        .build()
        .unwrap();
    for _ in 0..2 {
        let outcome = engine.execute(ctx("k"), || async { Ok::<_, &str>(1_u32) }).await.unwrap();
        assert_eq!(outcome.into_value(), Some(1));
    }
    let counts = counters.read();
    assert_eq!((counts.acquired, counts.completed, counts.replayed), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn acq_13_above_the_bounds_a_duplicate_is_in_flight_at_once() {
    let counters = Counters::new();
    let engine = IdempotencyEngine::builder(MemoryStore::new())
        .observer(Arc::clone(&counters))
        .build()
        .unwrap();
    let held = granted(&engine, "k").await;
    let waiters: Vec<_> = (0..1_100)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move { engine.try_acquire(&ctx("k")).await.unwrap() })
        })
        .collect();
    sleep(10 * MS).await;
    assert_eq!(engine.activity().waiting, 1_024);
    assert_eq!(counters.read().in_flight, 1_100 - 1_024);
    let _ = held.complete(Payload::new(CodecId::BYTES, 0, b"v")).await;
    let mut complete = 0;
    for waiter in waiters {
        complete += usize::from(matches!(waiter.await.unwrap(), Acquisition::Complete(_)));
    }
    assert_eq!(complete, 1_024);

    let config = {
        let mut config = retryproof_core::IdempotencyConfig::default();
        config.max_waiting = 1;
        config
    };
    let narrow = IdempotencyEngine::builder(MemoryStore::new()).config(config).build().unwrap();
    let (_a, _b) = (granted(&narrow, "a").await, granted(&narrow, "b").await);
    let first = {
        let narrow = narrow.clone();
        tokio::spawn(async move { narrow.try_acquire(&ctx("a")).await })
    };
    sleep(MS).await;
    let before = tokio::time::Instant::now();
    assert!(matches!(narrow.try_acquire(&ctx("b")).await.unwrap(), Acquisition::InFlight(_)));
    assert_eq!(before.elapsed(), Duration::ZERO, "max-waiting is per engine, over all identities");
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn acq_13_what_waiters_keep_in_memory_has_a_bound_over_all_identities() {
    let mut config = retryproof_core::IdempotencyConfig::default();
    config.max_waiting_bytes = 100;
    let engine = IdempotencyEngine::builder(MemoryStore::new()).config(config).build().unwrap();
    let (_a, _b) = (granted(&engine, "a").await, granted(&engine, "b").await);
    let keeping = |key: &str, bytes: usize| {
        let ctx =
            IdempotencyContext::builder("observe", key).wait_timeout(300 * MS).held_bytes(bytes);
        let (engine, ctx) = (engine.clone(), ctx.build().unwrap());
        async move { engine.try_acquire(&ctx).await.unwrap() }
    };
    let turned_away = async |key: &str, bytes: usize| {
        let began = tokio::time::Instant::now();
        assert!(matches!(keeping(key, bytes).await, Acquisition::InFlight(_)));
        began.elapsed().is_zero()
    };
    assert!(turned_away("a", 101).await, "alone above the bound");
    let first = tokio::spawn(keeping("a", 60));
    sleep(MS).await;
    assert!(turned_away("b", 41).await, "above the bound with another identity's waiter");
    assert!(turned_away("b", usize::MAX).await, "no sum wraps around");
    assert!(!turned_away("b", 40).await, "exactly the bound waits");
    assert!(!turned_away("a", 0).await, "a waiter that keeps nothing waits");
    // A wait gives back the bytes that it keeps, however it ends. The first wait ends at its
    // deadline, and the second is dropped.
    let _ = first.await.unwrap();
    let second = tokio::spawn(keeping("a", 100));
    sleep(MS).await;
    assert!(turned_away("b", 1).await);
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    assert!(!turned_away("b", 100).await);
    // A free key is granted, whatever the size of the request.
    assert!(matches!(keeping("free", 101).await, Acquisition::Granted(_)));
}

/// Records the size of each recorded result.
#[derive(Debug, Default)]
struct Sizes(Mutex<Vec<Option<usize>>>);

impl Observer for Sizes {
    fn completed(&self, event: LeaseEvent<'_>, _: Recorded) {
        self.0.lock().push(event.result_bytes);
    }

    fn failed(&self, event: LeaseEvent<'_>, _: Phase) {
        assert_eq!(event.result_bytes, None);
    }
}

#[tokio::test(start_paused = true)]
async fn run_8_a_completion_is_told_with_the_size_of_its_result() {
    let sizes = Arc::<Sizes>::default();
    let engine = IdempotencyEngine::builder(MemoryStore::new())
        .observer(Arc::clone(&sizes))
        .build()
        .unwrap();
    let value = Payload::new(CodecId::BYTES, 0, b"12345");
    let bytes = value.envelope().len();
    let _ = granted(&engine, "k").await.complete(value).await;
    granted(&engine, "released").await.release().await.unwrap();
    assert_eq!(*sizes.0.lock(), [Some(bytes)]);
}
