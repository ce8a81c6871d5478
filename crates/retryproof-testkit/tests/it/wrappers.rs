// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wrappers work as documented and are ordinary stores: without a fault, they pass the kit.

use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Peeked, SharedStore,
};
use retryproof_core::{
    CodecId, ErrorKind, IdempotencyContext, IdempotencyEngine, IdempotencyStore, Identity, OwnerId,
    Payload,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{
    CallLog, Fault, FaultStore, Faults, Operation, Outage, Recorder, Runs, Said, SlowStore,
    Subject, assert_runs_once, conformance,
};
use tokio::time::{Instant, timeout};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(10);

mod all_around_a_store {
    use super::*;

    async fn subject() -> Subject {
        let store = Recorder::new(MemoryStore::new(), CallLog::new());
        Subject::of(FaultStore::new(store, Faults::none())).with_purge().build()
    }

    conformance! { time = paused, factory = subject }
}

mod passed_on {
    use super::*;

    #[derive(Debug)]
    struct Around(MemoryStore);

    impl IdempotencyStore for Around {
        retryproof_testkit::forward! {
            0: acquire, peek, wait_for_change, extend, complete, release, profile
        }
    }

    async fn subject() -> Subject {
        Subject::of(Around(MemoryStore::new())).build()
    }

    conformance! { time = paused, factory = subject }
}

fn ask() -> AcquireRequest {
    AcquireRequest::new(OwnerId::new(), LEASE, LEASE)
}

fn id() -> Identity {
    Identity::of("wrappers", "k").unwrap()
}

fn done() -> Completion {
    Completion::new(Payload::new(CodecId::BYTES, 0, b"done").envelope().clone(), LEASE, None)
}

fn faulty() -> (FaultStore<MemoryStore>, Faults) {
    let faults = Faults::none();
    (FaultStore::new(MemoryStore::new(), faults.clone()), faults)
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_does_nothing_and_a_lost_answer_everything() {
    let (store, faults) = faulty();
    let ask = ask();
    faults.fail_next(Operation::Acquire, 1, Fault::Refused);
    let error = store.acquire(&id(), &ask).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Unavailable, Some("acquire")));
    assert!(matches!(store.peek(&id()).await.unwrap(), Peeked::Absent));
    faults.fail_next(Operation::Acquire, 1, Fault::AnswerLost);
    assert_eq!(store.acquire(&id(), &ask).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(matches!(store.peek(&id()).await.unwrap(), Peeked::Busy(_)));
    faults.fail_next(Operation::Complete, 1, Fault::AnswerLost);
    assert!(store.complete(&id(), ask.owner, &done()).await.is_err());
    assert_eq!(
        store.complete(&id(), ask.owner, &done()).await.unwrap(),
        FencedWrite::AlreadyApplied,
        "CMP-3"
    );
    assert_eq!(faults.injected(), 1);
}

#[tokio::test(start_paused = true)]
async fn swallowed_calls_never_end_with_or_without_their_effect() {
    let (store, faults) = faulty();
    faults.fail_call(1, Fault::Swallowed);
    assert!(timeout(LEASE, store.acquire(&id(), &ask())).await.is_err());
    assert!(matches!(store.peek(&id()).await.unwrap(), Peeked::Absent));
    faults.fail_call(1, Fault::AnswerSwallowed);
    assert!(timeout(MS, store.acquire(&id(), &ask())).await.is_err());
    assert!(matches!(store.peek(&id()).await.unwrap(), Peeked::Busy(_)));
}

#[tokio::test(start_paused = true)]
async fn plans_count_calls_from_one() {
    let (store, faults) = faulty();
    faults.fail_every(3, Fault::Refused);
    let mut failed = Vec::new();
    for _ in 0..7 {
        failed.push(store.peek(&id()).await.is_err());
    }
    assert_eq!(failed, [false, false, true, false, false, true, false]);
    assert_eq!((faults.calls(), faults.injected()), (7, 2));
    faults.fail_call(2, Fault::Refused);
    assert!(
        store.peek(&id()).await.is_ok() && store.peek(&id()).await.is_err(),
        "numbers begin anew"
    );
    faults.clear();
    assert!(store.peek(&id()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_outage_refuses_swallows_or_stalls() {
    let (store, faults) = faulty();
    let shared = SharedStore::new(store);
    faults.begin_outage(Outage::Refuse);
    assert_eq!(shared.peek(&id()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    faults.begin_outage(Outage::Stall);
    let stalled = tokio::spawn({
        let shared = shared.clone();
        async move { shared.acquire(&id(), &ask()).await }
    });
    tokio::task::yield_now().await;
    faults.begin_outage(Outage::Swallow);
    let swallowed = tokio::spawn({
        let shared = shared.clone();
        async move { shared.peek(&id()).await }
    });
    tokio::time::sleep(LEASE).await;
    assert!(!stalled.is_finished());
    faults.end_outage();
    assert!(matches!(timeout(MS, stalled).await.unwrap().unwrap().unwrap(), Acquired::Granted(_)));
    assert!(timeout(LEASE, swallowed).await.is_err(), "swallowed calls stay without an answer");
    assert_eq!(faults.injected(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_takes_its_time_both_ways_and_bounds_a_wait() {
    let store = SlowStore::new(MemoryStore::new(), 30 * MS, 20 * MS);
    let started = Instant::now();
    let ask = ask();
    let Acquired::Granted(grant) = store.acquire(&id(), &ask).await.unwrap() else {
        panic!("granted")
    };
    assert_eq!(started.elapsed(), 50 * MS);
    let started = Instant::now();
    store.wait_for_change(&id(), grant.token, 200 * MS).await.unwrap();
    assert!(
        started.elapsed() >= 199 * MS && started.elapsed() <= 202 * MS,
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn the_log_keeps_operations_answers_and_drops() {
    let log = CallLog::new();
    let faults = Faults::none();
    let store = Recorder::new(FaultStore::new(MemoryStore::new(), faults.clone()), log.clone());
    let ask = ask();
    let Acquired::Granted(grant) = store.acquire(&id(), &ask).await.unwrap() else {
        panic!("granted")
    };
    assert!(timeout(MS, store.wait_for_change(&id(), grant.token, LEASE)).await.is_err());
    faults.fail_next(Operation::Extend, 1, Fault::Refused);
    assert!(store.extend(&id(), ask.owner, LEASE).await.is_err());
    assert_eq!(store.complete(&id(), ask.owner, &done()).await.unwrap(), FencedWrite::Applied);
    assert!(matches!(store.peek(&id()).await.unwrap(), Peeked::Complete(_)));
    let said: Vec<_> = log.entries().iter().map(|entry| (entry.operation, entry.said)).collect();
    assert_eq!(
        said,
        [
            (Operation::Acquire, Said::Granted),
            (Operation::WaitForChange, Said::Dropped),
            (Operation::Extend, Said::Failed(ErrorKind::Unavailable)),
            (Operation::Complete, Said::Fenced(FencedWrite::Applied)),
            (Operation::Peek, Said::Complete),
        ]
    );
    assert_eq!(log.count_of(|entry| entry.owner == Some(ask.owner)), 3);
    assert!(!format!("{log:?}").contains("\"k\""), "ID-4");
    log.clear();
    assert_eq!(log.entries(), []);
}

#[tokio::test(start_paused = true)]
async fn runs_once_counts_runs_of_the_action() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let execute = |scope: &'static str| {
        let engine = engine.clone();
        move |runs: Runs| {
            let engine = engine.clone();
            async move {
                let ctx = IdempotencyContext::builder(scope, "k").build().unwrap();
                let action = || async move {
                    runs.note();
                    Ok::<_, std::io::Error>(runs.count())
                };
                engine.execute(ctx, action).await.unwrap().into_value().unwrap()
            }
        }
    };
    let answers = assert_runs_once!(40, execute("once"));
    assert_eq!(answers, [1; 40]);
    let unguarded = tokio::spawn(async {
        assert_runs_once!(2, |runs: Runs| async move { runs.note() });
    });
    assert!(unguarded.await.unwrap_err().is_panic(), "two runs are not one run");
}
