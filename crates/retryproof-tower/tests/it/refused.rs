// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that do not run, each with its type of refusal.

use std::error::Error as StdError;
use std::time::Duration;

use retryproof_core::{
    Codec, CodecId, CompletionFailurePolicy, Error, ErrorKind, Fingerprint, IdempotencyContext,
    IdempotencyEngine, Payload, Rejected, Result, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{Fault, FaultStore, Faults, Outage};
use retryproof_tower::EngineLayer;
use tower::{Layer, ServiceExt as _, service_fn};

use crate::world::{Job, JobError, Receipt, Runs, SEC, by_id, engine, job, send, slow};

fn rejected<T: std::fmt::Debug>(result: std::result::Result<T, JobError>) -> Rejected {
    match result {
        Err(JobError::Rejected(rejected)) => rejected,
        other => panic!("a refusal, not {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn http_10_ann_5_in_flight_is_an_error_with_the_time_to_come_back_after() {
    let runs = Runs::default();
    let layer = EngineLayer::new(engine(), by_id).lease(20 * SEC).wait_timeout(Duration::ZERO);
    let jobs = slow(&layer, &runs, 5 * SEC);
    let running = tokio::spawn({
        let jobs = jobs.clone();
        async move { send(&jobs, job("a")).await }
    });
    while runs.count() == 0 {
        tokio::task::yield_now().await;
    }
    match rejected(send(&jobs, job("a")).await) {
        Rejected::InFlight { retry_after } => assert_eq!(retry_after, 20 * SEC),
        other => panic!("{other:?}"),
    }
    assert_eq!(running.await.unwrap().unwrap().run, 1);
    assert_eq!(send(&jobs, job("a")).await.unwrap().run, 1);
}

#[tokio::test(start_paused = true)]
async fn fp_1_another_request_under_the_same_key_is_a_mismatch() {
    let runs = Runs::default();
    let layer = EngineLayer::new(engine(), |job: &Job| {
        let fingerprint = Fingerprint::of(&job.amount)?;
        Ok::<_, Error>(IdempotencyContext::builder("jobs", &job.id).fingerprint(fingerprint))
    });
    let jobs = slow(&layer, &runs, SEC);
    send(&jobs, job("a")).await.unwrap();
    let other = Job { amount: 8, ..job("a") };
    let got = rejected(send(&jobs, other).await);
    assert!(matches!(got, Rejected::Mismatch), "{got:?}");
    assert_eq!(send(&jobs, job("a")).await.unwrap().run, 1);
}

#[tokio::test(start_paused = true)]
async fn id_3_ctx_2_a_request_without_a_usable_key_is_refused_and_nothing_runs() {
    let runs = Runs::default();
    let jobs = slow(&EngineLayer::new(engine(), by_id), &runs, SEC);
    for id in ["", "  ", "a\nb", &"x".repeat(513)] {
        match rejected(send(&jobs, job(id)).await) {
            Rejected::Store(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{id:?}"),
            other => panic!("{other:?}"),
        }
    }
    let keyless =
        |_: &Job| Err::<(&str, &str), _>(Error::new(ErrorKind::Invalid, "the job has no id"));
    let refused =
        rejected(send(&slow(&EngineLayer::new(engine(), keyless), &runs, SEC), job("a")).await);
    assert!(refused.to_string().contains("the job has no id"), "{refused}");
    let layer = EngineLayer::new(engine(), by_id).lease(Duration::from_millis(9));
    let refused = rejected(send(&slow(&layer, &runs, SEC), job("a")).await);
    assert!(refused.to_string().contains("lease"), "{refused}");
    assert_eq!(runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn sto_5_a_store_that_is_away_refuses_and_nothing_runs() {
    let runs = Runs::default();
    let faults = Faults::none();
    let engine = IdempotencyEngine::new(SharedStore::new(FaultStore::new(
        MemoryStore::new(),
        faults.clone(),
    )));
    let jobs = slow(&EngineLayer::new(engine, by_id), &runs, SEC);
    faults.begin_outage(Outage::Refuse);
    match rejected(send(&jobs, job("a")).await) {
        Rejected::Store(error) => assert!(error.is_retryable(), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(runs.count(), 0);
    faults.end_outage();
    // After the outage, the engine's circuit breaker first lets only one call at a time through as
    // a probe, so try until a call succeeds.
    let mut answer = send(&jobs, job("a")).await;
    while answer.is_err() {
        tokio::time::sleep(SEC).await;
        answer = send(&jobs, job("a")).await;
    }
    assert_eq!(answer.unwrap().run, 1);
}

#[tokio::test(start_paused = true)]
async fn cmp_4_a_completion_that_fails_is_told_where_the_layer_says_so() {
    let runs = Runs::default();
    for (policy, told) in
        [(CompletionFailurePolicy::LogAndReturn, false), (CompletionFailurePolicy::Propagate, true)]
    {
        let faults = Faults::none();
        faults.plan(|call| {
            (call.operation == retryproof_testkit::Operation::Complete).then_some(Fault::Refused)
        });
        let engine =
            IdempotencyEngine::new(SharedStore::new(FaultStore::new(MemoryStore::new(), faults)));
        let jobs = slow(&EngineLayer::new(engine, by_id).completion(policy), &runs, SEC);
        let answer = send(&jobs, job("a")).await;
        if told {
            assert!(matches!(rejected(answer), Rejected::Completion(_)));
        } else {
            assert_eq!(answer.unwrap().run, 1);
        }
    }
}

/// A codec that cannot encode or decode anything.
#[derive(Clone)]
struct Broken;

impl Codec<Receipt> for Broken {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn encode(&self, _: &Receipt, _: &mut Vec<u8>) -> Result<()> {
        Err(Error::new(ErrorKind::Codec, "broken"))
    }

    fn decode(&self, _: &Payload) -> Result<Receipt> {
        Err(Error::new(ErrorKind::Codec, "broken"))
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_9_a_response_that_cannot_be_kept_is_not_replayable_and_does_not_run_again() {
    let runs = Runs::default();
    let jobs = slow(&EngineLayer::new(engine(), by_id).codec(Broken), &runs, SEC);
    assert_eq!(send(&jobs, job("a")).await.unwrap().run, 1);
    assert!(matches!(rejected(send(&jobs, job("a")).await), Rejected::NotReplayable));
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn ann_5_a_boxed_error_gives_the_refusal_back_by_its_type() {
    type BoxError = Box<dyn StdError + Send + Sync>;
    let service = service_fn(|_: Job| async { Ok::<_, BoxError>(1) });
    let jobs = EngineLayer::new(engine(), by_id).layer(service);
    let error = jobs.oneshot(job("")).await.unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Rejected::Store(_))));
}

#[tokio::test(start_paused = true)]
async fn run_5_after_shutdown_what_is_done_is_replayed_and_nothing_else_runs() {
    let runs = Runs::default();
    let engine = engine();
    let jobs = slow(&EngineLayer::new(engine.clone(), by_id), &runs, SEC);
    send(&jobs, job("a")).await.unwrap();
    assert_eq!(engine.shutdown(SEC).await, 0);
    assert_eq!(send(&jobs, job("a")).await.unwrap().run, 1);
    match rejected(send(&jobs, job("b")).await) {
        Rejected::Store(error) => assert_eq!(error.kind(), ErrorKind::ShuttingDown),
        other => panic!("{other:?}"),
    }
    assert_eq!(runs.count(), 1);
}
