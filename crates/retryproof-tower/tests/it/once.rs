// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each job runs once per key, and its receipt is stored.

use std::sync::{Arc, Mutex};

use retryproof_core::{Attempt, JsonCodec, Lease, NoCodec, Rejected};
use retryproof_tower::{EngineLayer, EngineService, Identify};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt as _, service_fn};

use crate::world::{Job, JobError, Receipt, Runs, SEC, by_id, engine, job, send, slow};

#[tokio::test(start_paused = true)]
async fn acq_1_the_first_job_of_a_key_runs_and_the_others_get_its_receipt() {
    let runs = Runs::default();
    let jobs = slow(&EngineLayer::new(engine(), by_id), &runs, SEC);
    let first = send(&jobs, job("a")).await.unwrap();
    assert_eq!(first, Receipt { run: 1, amount: 7 });
    assert_eq!(send(&jobs, job("a")).await.unwrap(), first);
    assert_eq!(send(&jobs, job("b")).await.unwrap().run, 2, "another key");
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn id_1_the_same_key_under_two_scopes_is_two_jobs() {
    let runs = Runs::default();
    let engine = engine();
    for (scope, run) in [("invoices", 1), ("mails", 2), ("invoices", 1)] {
        let layer = EngineLayer::new(engine.clone(), move |job: &Job| (scope, job.id.clone()));
        assert_eq!(send(&slow(&layer, &runs, SEC), job("a")).await.unwrap().run, run, "{scope}");
    }
}

#[tokio::test]
async fn acq_3_concurrent_duplicates_wait_and_all_get_one_receipt() {
    let runs = Runs::default();
    let jobs = slow(&EngineLayer::new(engine(), by_id), &runs, SEC / 20);
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let jobs = jobs.clone();
        calls.spawn(async move { send(&jobs, job("a")).await.unwrap() });
    }
    let receipts = calls.join_all().await;
    assert!(receipts.iter().all(|receipt| receipt.run == 1), "{receipts:?}");
    assert_eq!((receipts.len(), runs.count()), (100, 1));
}

#[tokio::test(start_paused = true)]
async fn run_4_an_error_of_the_service_comes_back_unchanged_and_frees_the_key() {
    let runs = Runs::default();
    let counted = runs.clone();
    let flaky = service_fn(move |_: Job| {
        let run = counted.run();
        async move { if run == 1 { Err(JobError::Failed(run)) } else { Ok(run) } }
    });
    let jobs = EngineLayer::new(engine(), by_id).layer(flaky);
    assert!(matches!(jobs.clone().oneshot(job("a")).await, Err(JobError::Failed(1))));
    assert_eq!(jobs.clone().oneshot(job("a")).await.unwrap(), 2);
    assert_eq!(jobs.oneshot(job("a")).await.unwrap(), 2, "stored");
}

#[tokio::test(start_paused = true)]
async fn run_4_a_panic_of_the_service_resumes_and_frees_the_key() {
    let runs = Runs::default();
    let counted = runs.clone();
    let panics_once = service_fn(move |_: Job| {
        let run = counted.run();
        async move {
            assert!(run > 1, "the first run panics");
            Ok::<_, JobError>(run)
        }
    });
    for own_task in [false, true] {
        let layer = EngineLayer::new(engine(), by_id);
        let layer = if own_task { layer.on_own_task() } else { layer };
        let before = runs.count();
        let jobs = layer.layer(panics_once.clone());
        if before == 0 {
            let broken = tokio::spawn(jobs.clone().oneshot(job("a"))).await;
            assert!(broken.unwrap_err().is_panic());
        }
        assert_eq!(jobs.oneshot(job("a")).await.unwrap(), runs.count());
        assert!(runs.count() > before);
    }
}

#[tokio::test(start_paused = true)]
async fn ann_5_a_service_that_returns_nothing_is_skipped() {
    let runs = Runs::default();
    let counted = runs.clone();
    let mail = service_fn(move |_: Job| {
        counted.run();
        async { Ok::<_, Rejected>(()) }
    });
    let mail = EngineLayer::new(engine(), by_id).codec(NoCodec).layer(mail);
    for _ in 0..3 {
        mail.clone().oneshot(job("a")).await.unwrap();
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn ctx_3_the_layers_ttl_is_the_records() {
    let runs = Runs::default();
    let jobs = slow(&EngineLayer::new(engine(), by_id).ttl(10 * SEC), &runs, SEC);
    for (wait, run) in [(SEC, 1), (10 * SEC, 1), (SEC, 2)] {
        assert_eq!(send(&jobs, job("a")).await.unwrap().run, run);
        tokio::time::sleep(wait).await;
    }
}

/// Passes data of the lease to the service in the request.
#[derive(Clone, Default)]
struct ByOrder(Arc<Mutex<Vec<Attempt>>>);

impl Identify<Job> for ByOrder {
    type Context = (&'static str, String);

    fn identify(&self, job: &Job) -> Self::Context {
        by_id(job)
    }

    fn granted(&self, job: &mut Job, lease: &Lease) {
        job.id = lease.downstream_key("charge");
        self.0.lock().unwrap().push(lease.attempt());
    }
}

#[tokio::test(start_paused = true)]
async fn acq_12_the_service_can_have_the_lease_of_its_run() {
    let hook = ByOrder::default();
    let seen = Arc::clone(&hook.0);
    let echo = service_fn(|job: Job| async { Ok::<_, Rejected>(job.id) });
    let jobs = EngineLayer::new(engine(), hook).layer(echo);
    let key = jobs.clone().oneshot(job("a")).await.unwrap();
    assert!(key != "a" && !key.is_empty());
    assert_eq!(jobs.oneshot(job("a")).await.unwrap(), key);
    assert_eq!(*seen.lock().unwrap(), [Attempt::First], "a replay has no lease");
}

/// Passes the lease itself to the service in the request.
#[derive(Clone)]
struct WithLease(Arc<Mutex<Option<Lease>>>);

impl Identify<Job> for WithLease {
    type Context = (&'static str, String);

    fn identify(&self, job: &Job) -> Self::Context {
        by_id(job)
    }

    fn granted(&self, _: &mut Job, lease: &Lease) {
        *self.0.lock().unwrap() = Some(lease.clone());
    }
}

#[tokio::test(start_paused = true)]
async fn run_4_a_service_that_does_not_know_what_it_did_leaves_the_key_to_the_lease() {
    let hook = WithLease(Arc::default());
    let lease = Arc::clone(&hook.0);
    let unsure = service_fn(move |_: Job| {
        let lease = lease.lock().unwrap().clone().unwrap();
        async move {
            lease.hold_on_error();
            if lease.attempt() == Attempt::First { Err(JobError::Failed(1)) } else { Ok(2) }
        }
    });
    let jobs = EngineLayer::new(engine(), hook).lease(3 * SEC).wait_timeout(SEC).layer(unsure);
    assert!(matches!(jobs.clone().oneshot(job("a")).await, Err(JobError::Failed(1))));
    let early = jobs.clone().oneshot(job("a")).await;
    assert!(matches!(early, Err(JobError::Rejected(Rejected::InFlight { .. }))), "{early:?}");
    tokio::time::advance(3 * SEC).await;
    assert_eq!(jobs.oneshot(job("a")).await.unwrap(), 2, "a takeover");
}

const _: () = {
    const fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<EngineLayer<fn(&Job) -> (&'static str, String)>>();
    shared::<EngineService<(), fn(&Job) -> (&'static str, String), JsonCodec>>();
};
