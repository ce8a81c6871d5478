// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executions that are dropped at each of their await points (RUN-5, ACQ-11).

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use retryproof_core::store::{FencedWrite, SharedStore};
use retryproof_core::{
    Acquisition, CodecId, IdempotencyConfig, IdempotencyEngine, OnDrop, Outcome, Payload,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{CallLog, Operation, Recorder, Said, SlowStore};
use tokio::time::sleep;

use super::{LEASE, MS, OPERATION, ctx};

/// Drops a call once it has been pending `times` times; returns the call's answer if the call ends
/// before that.
async fn until_pending<T>(call: impl Future<Output = T>, times: u32) -> Option<T> {
    let mut call = pin!(call);
    let mut pending = 0;
    poll_fn(|cx| {
        if pending == times {
            return Poll::Ready(None);
        }
        match call.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => {
                pending += 1;
                if pending == times { Poll::Ready(None) } else { Poll::Pending }
            }
        }
    })
    .await
}

/// An engine on a store that has an await point before and after every call, so that a drop can
/// come before the call, after it, or while the answer is on its way.
struct Stage {
    engine: IdempotencyEngine,
    log: CallLog,
    /// 0 before the action's first poll, 1 while it runs, 2 after it has returned.
    action: Arc<AtomicU32>,
    runs: Arc<AtomicU32>,
}

impl Stage {
    fn new() -> Self {
        let log = CallLog::new();
        let store = SlowStore::new(Recorder::new(MemoryStore::new(), log.clone()), MS, MS);
        let mut config = IdempotencyConfig::default();
        config.operation_timeout = OPERATION;
        let engine =
            IdempotencyEngine::builder(SharedStore::new(store)).config(config).build().unwrap();
        Self { engine, log, action: Arc::default(), runs: Arc::default() }
    }

    /// Returns an action that has three await points and lasts longer than half of the lease, so
    /// that a beat is sent while it runs.
    fn action(&self) -> impl Future<Output = Result<u32, &'static str>> + Send + use<> {
        let (action, runs) = (Arc::clone(&self.action), Arc::clone(&self.runs));
        async move {
            action.store(1, Ordering::SeqCst);
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            for _ in 0..3 {
                sleep(LEASE / 4).await;
            }
            action.store(2, Ordering::SeqCst);
            Ok(run)
        }
    }

    fn stage(&self) -> u32 {
        self.action.load(Ordering::SeqCst)
    }

    async fn again(&self, wait: Duration) -> Outcome<u32> {
        let runs = Arc::clone(&self.runs);
        let action = || async move { Ok::<_, &str>(runs.fetch_add(1, Ordering::SeqCst) + 1) };
        self.engine.execute(ctx("k", wait), action).await.unwrap()
    }

    fn takeovers(&self) -> usize {
        self.log
            .count_of(|call| call.operation == Operation::Acquire && call.said == Said::TookOver)
    }

    async fn is_at_rest(&self, what: &str) {
        sleep(2 * LEASE).await;
        let activity = self.engine.activity();
        assert_eq!((activity.running, activity.waiting, activity.beating), (0, 0, 0), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_5_acq_11_execute_dropped_at_every_await_point() {
    let mut stages = [0; 3];
    for times in 0..100 {
        let stage = Stage::new();
        let call = stage.engine.execute(ctx("k", LEASE), || stage.action());
        let done = until_pending(call, times).await.is_some();
        let what = format!("dropped at await {times}, in stage {}", stage.stage());
        let at = stage.stage();
        stages[at as usize] += u32::from(!done);
        match at {
            0 => {
                sleep(20 * MS).await;
                assert_eq!(
                    stage.again(Duration::ZERO).await,
                    Outcome::Executed(1),
                    "{what}: released at once"
                );
                assert_eq!(stage.takeovers(), 0, "{what}");
            }
            1 => {
                assert!(
                    stage.again(Duration::ZERO).await.is_in_flight(),
                    "{what}: its effect is unknown"
                );
                assert_eq!(stage.again(3 * LEASE).await, Outcome::Executed(2), "{what}");
                assert_eq!(stage.takeovers(), 1, "{what}: taken over, as if the owner had died");
            }
            _ => {
                assert_eq!(
                    stage.again(3 * LEASE).await,
                    Outcome::Replayed(1),
                    "{what}: the completion finished in the background"
                );
                assert_eq!(stage.takeovers(), 0, "{what}");
            }
        }
        stage.is_at_rest(&what).await;
        if done {
            assert!(stages.iter().all(|drops| *drops >= 2), "drops in each stage: {stages:?}");
            return;
        }
    }
    panic!("the call does not end");
}

#[tokio::test(start_paused = true)]
async fn run_5_execute_with_on_drop_release_frees_the_key_at_every_await_point() {
    for times in 0..100 {
        let stage = Stage::new();
        let call =
            stage.engine.call(ctx("k", LEASE)).on_drop(OnDrop::Release).execute(|| stage.action());
        let done = until_pending(call, times).await.is_some();
        let (at, what) = (stage.stage(), format!("dropped at await {times}"));
        sleep(20 * MS).await;
        let expected = match at {
            0 => Outcome::Executed(1),
            1 => Outcome::Executed(2),
            _ => Outcome::Replayed(1),
        };
        assert_eq!(stage.again(Duration::ZERO).await, expected, "{what}");
        assert_eq!(stage.takeovers(), 0, "{what}");
        stage.is_at_rest(&what).await;
        if done {
            return;
        }
    }
    panic!("the call does not end");
}

/// A shutdown waits for calls that a drop sends in the background, because the runtime, and with it
/// an unfinished release, may be gone afterwards.
#[tokio::test(start_paused = true)]
async fn run_5_a_shutdown_waits_for_the_release_that_a_drop_has_sent() {
    let mut released = 0;
    for times in 0..100 {
        let stage = Stage::new();
        let call =
            stage.engine.call(ctx("k", LEASE)).on_drop(OnDrop::Release).execute(|| stage.action());
        let done = until_pending(call, times).await.is_some();
        let what = format!("dropped at await {times}, in stage {}", stage.stage());
        assert_eq!(stage.engine.shutdown(Duration::from_secs(30)).await, 0, "{what}");
        let took_effect =
            |call: &retryproof_testkit::Entry| call.said == Said::Fenced(FencedWrite::Applied);
        let granted = stage.log.count_of(|call| call.said == Said::Granted);
        let ends =
            stage.log.count_of(|call| call.operation != Operation::Extend && took_effect(call));
        assert_eq!(ends, granted, "{what}");
        released +=
            stage.log.count_of(|call| call.operation == Operation::Release && took_effect(call));
        if done {
            assert!(released >= 4, "{released} drops after a grant");
            return;
        }
    }
    panic!("the call does not end");
}

#[tokio::test(start_paused = true)]
async fn run_5_a_lease_whose_holder_let_it_go_is_not_extended_any_more() {
    for holds in [false, true] {
        let stage = Stage::new();
        let Acquisition::Granted(held) = stage.engine.try_acquire(&ctx("k", LEASE)).await.unwrap()
        else {
            panic!("granted")
        };
        let lease = held.lease().clone();
        assert!(lease.confirm().await.unwrap());
        if holds {
            held.hold()
        } else {
            drop(held)
        }
        assert!(!lease.confirm().await.unwrap(), "holds {holds}");
        assert_eq!(
            stage.log.count_of(|call| call.operation == Operation::Extend),
            1,
            "holds {holds}"
        );
        // No call has extended the lease since the holder let it go, so it ends, and the next
        // caller takes over.
        sleep(LEASE / 2).await;
        assert!(!lease.confirm().await.unwrap(), "holds {holds}");
        assert_eq!(stage.again(LEASE).await, Outcome::Executed(1), "holds {holds}");
        assert_eq!(stage.takeovers(), 1, "holds {holds}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_5_spawn_dropped_after_its_grant_changes_nothing() {
    let mut carried_on = 0;
    for times in 0..100 {
        let stage = Stage::new();
        let action = stage.action();
        let call = stage.engine.spawn(ctx("k", LEASE), move || action);
        let done = until_pending(call, times).await.is_some();
        let what = format!("dropped at await {times}");
        sleep(20 * MS).await;
        if stage.stage() == 0 {
            assert_eq!(
                stage.again(Duration::ZERO).await,
                Outcome::Executed(1),
                "{what}: released at once"
            );
        } else {
            carried_on += u32::from(!done);
            assert_eq!(stage.again(3 * LEASE).await, Outcome::Replayed(1), "{what}");
        }
        assert_eq!(stage.takeovers(), 0, "{what}");
        stage.is_at_rest(&what).await;
        if done {
            assert!(carried_on >= 1, "no drop came after the grant");
            return;
        }
    }
    panic!("the call does not end");
}

#[tokio::test(start_paused = true)]
async fn acq_5_acq_11_a_waiter_dropped_at_every_await_point_passes_its_place_on() {
    for times in 0..100 {
        let stage = Stage::new();
        let Acquisition::Granted(held) = stage.engine.try_acquire(&ctx("k", LEASE)).await.unwrap()
        else {
            panic!("granted")
        };
        let what = format!("dropped at await {times}");
        let patience = ctx("k", 2 * LEASE);
        let waiting = stage.engine.try_acquire(&patience);
        let other = async {
            // This call joins the wait that `waiting` leads.
            sleep(LEASE / 2).await;
            stage.again(20 * LEASE).await
        };
        let ending = async {
            sleep(3 * LEASE).await;
            held.complete(Payload::new(CodecId::JSON, 0, b"9")).await
        };
        let (dropped, other, _) = tokio::join!(until_pending(waiting, times), other, ending);
        assert_eq!(other, Outcome::Replayed(9), "{what}");
        stage.is_at_rest(&what).await;
        if let Some(answer) = dropped {
            assert!(matches!(answer.unwrap(), Acquisition::InFlight(_)), "{what}");
            return;
        }
    }
    panic!("the wait does not end");
}

#[tokio::test(start_paused = true)]
async fn acq_11_try_acquire_dropped_at_every_await_point_frees_the_key() {
    for times in 0..100 {
        let stage = Stage::new();
        let context = ctx("k", LEASE);
        let acquired = until_pending(stage.engine.try_acquire(&context), times).await;
        let what = format!("dropped at await {times}");
        if let Some(acquired) = acquired {
            assert!(matches!(acquired.unwrap(), Acquisition::Granted(_)), "{what}");
            return;
        }
        sleep(20 * MS).await;
        assert_eq!(stage.again(Duration::ZERO).await, Outcome::Executed(1), "{what}");
        stage.is_at_rest(&what).await;
    }
    panic!("the acquire does not end");
}

type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

#[tokio::test(start_paused = true)]
async fn run_5_complete_and_release_dropped_at_every_await_point_are_finished() {
    for completes in [true, false] {
        let mut drops = 0;
        for times in 0..100 {
            let stage = Stage::new();
            let Acquisition::Granted(held) =
                stage.engine.try_acquire(&ctx("k", LEASE)).await.unwrap()
            else {
                panic!("granted")
            };
            let ending: Ending = if completes {
                let completing = held.complete(Payload::new(CodecId::JSON, 0, b"9"));
                Box::pin(async move { drop(completing.await) })
            } else {
                let releasing = held.release();
                Box::pin(async move { releasing.await.unwrap() })
            };
            let done = until_pending(ending, times).await.is_some();
            let what = format!("completes {completes}, dropped at await {times}");
            sleep(20 * MS).await;
            let expected = if completes { Outcome::Replayed(9) } else { Outcome::Executed(1) };
            assert_eq!(stage.again(Duration::ZERO).await, expected, "{what}");
            stage.is_at_rest(&what).await;
            drops += u32::from(!done);
            if done {
                break;
            }
        }
        assert!((3..100).contains(&drops), "{drops} drops");
    }
}
