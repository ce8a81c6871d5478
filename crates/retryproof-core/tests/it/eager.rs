// SPDX-License-Identifier: MIT OR Apache-2.0
//! A call such as `complete` decides at once how a lease ends. What the caller does with the
//! returned future changes nothing (RUN-5).

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use retryproof_core::observe::Phase;
use retryproof_core::store::Peeked;
use retryproof_core::{
    Acquiring, Acquisition, CodecId, HeldLease, IdempotencyContext, IdempotencyEngine, Payload,
    SharedStore, Tombstone,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::SlowStore;
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);

/// Creates two engines: one on a store that answers at once, and one on a distant store.
fn engines() -> [IdempotencyEngine; 2] {
    let far = SlowStore::new(MemoryStore::new(), MS, MS);
    [IdempotencyEngine::new(MemoryStore::new()), IdempotencyEngine::new(SharedStore::new(far))]
}

fn ctx(key: &str) -> IdempotencyContext {
    let builder = IdempotencyContext::builder("eager", key).lease(1_000 * MS);
    builder.wait_timeout(Duration::ZERO).build().unwrap()
}

async fn granted(engine: &IdempotencyEngine, key: &str) -> HeldLease {
    match engine.try_acquire(&ctx(key)).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

fn value() -> Payload {
    Payload::new(CodecId::JSON, 0, b"9")
}

type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;
type EndLease = fn(HeldLease) -> Ending;

/// The ways to end a lease: the name and the call of each, and whether it leaves a record.
const ENDINGS: [(&str, EndLease, bool); 4] = [
    ("complete", |held| over(held.complete(value())), true),
    ("tombstone", |held| over(held.complete_tombstone(Tombstone::new())), true),
    ("release", |held| over(held.release()), false),
    ("release after", |held| over(held.release_after(Phase::Action)), false),
];

fn over<T>(end: impl Future<Output = T> + Send + 'static) -> Ending {
    Box::pin(async move { drop(end.await) })
}

#[tokio::test(start_paused = true)]
async fn run_5_an_end_whose_future_is_never_polled_is_finished_in_the_background() {
    for (at, engine) in engines().into_iter().enumerate() {
        for (name, end, leaves_a_record) in ENDINGS {
            let what = format!("store {at}, {name}");
            for selected in [false, true] {
                let key = format!("{name} {selected}");
                let ending = end(granted(&engine, &key).await);
                if selected {
                    // The first branch is ready, so `ending` is dropped before its first poll.
                    tokio::select! {
                        biased;
                        () = std::future::ready(()) => {}
                        () = ending => panic!("the other branch is ready"),
                    }
                } else {
                    drop(ending);
                }
                sleep(20 * MS).await;
                let standing =
                    engine.store().as_dyn().dyn_peek(ctx(&key).identity().clone()).await.unwrap();
                match standing {
                    Peeked::Complete(_) => assert!(leaves_a_record, "{what}"),
                    Peeked::Absent => assert!(!leaves_a_record, "{what}"),
                    Peeked::Busy(_) => panic!("{what}: the lease is left to run out"),
                }
            }
        }
        assert_eq!(engine.activity().beating, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn run_5_a_shutdown_waits_for_an_end_whose_future_was_never_polled() {
    for (name, end, leaves_a_record) in ENDINGS {
        for (at, engine) in engines().into_iter().enumerate() {
            drop(end(granted(&engine, name).await));
            assert_eq!(engine.shutdown(Duration::from_secs(30)).await, 0);
            let standing =
                engine.store().as_dyn().dyn_peek(ctx(name).identity().clone()).await.unwrap();
            assert_eq!(
                matches!(standing, Peeked::Complete(_)),
                leaves_a_record,
                "store {at}, {name}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn run_1_a_completion_that_is_kept_for_later_keeps_its_lease() {
    for engine in engines() {
        let completing = granted(&engine, "k").await.complete(value());
        sleep(5_000 * MS).await;
        let found = engine.try_acquire(&ctx("k")).await.unwrap();
        assert!(!matches!(found, Acquisition::Granted(_)), "nothing takes over: {found:?}");
        assert!(matches!(completing.await, retryproof_core::CompletionResult::Recorded));
        assert!(matches!(engine.try_acquire(&ctx("k")).await.unwrap(), Acquisition::Complete(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn acq_4_on_a_store_that_answers_at_once_only_a_call_without_a_wait_ends_at_once() {
    let [engine, _] = engines();
    let held = granted(&engine, "k").await;
    assert!(matches!(engine.begin_acquire(&ctx("k")), Acquiring::Done(_)));
    let patient = IdempotencyContext::builder("eager", "k").wait_timeout(10_000 * MS);
    let patient = patient.build().unwrap();
    let Acquiring::Waiting(waiting) = engine.begin_acquire(&patient) else {
        panic!("the call may wait for the holder")
    };
    let (found, ()) = tokio::join!(waiting, async {
        sleep(500 * MS).await;
        drop(held.complete(value()).await);
    });
    assert!(matches!(found.acquired, Ok(Acquisition::Complete(_))), "{:?}", found.acquired);
}
