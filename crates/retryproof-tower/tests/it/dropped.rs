// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures that are dropped: before anything ran, in the middle of the work, and while the work
//! runs in a separate task (RUN-5).

use std::time::Duration;

use retryproof_core::{OnDrop, Rejected};
use retryproof_tower::EngineLayer;
use tower::{Service as _, ServiceExt as _};

use crate::world::{JobError, Runs, SEC, by_id, engine, job, send, slow};

#[tokio::test(start_paused = true)]
async fn run_5_dropped_before_it_was_polled_nothing_happened() {
    let runs = Runs::default();
    let mut jobs =
        slow(&EngineLayer::new(engine(), by_id).wait_timeout(Duration::ZERO), &runs, SEC);
    drop(jobs.ready().await.unwrap().call(job("a")));
    assert_eq!(runs.count(), 0);
    assert_eq!(send(&jobs, job("a")).await.unwrap().run, 1);
}

#[tokio::test(start_paused = true)]
async fn run_5_dropped_while_it_runs_the_lease_runs_out_and_the_next_run_takes_over() {
    let runs = Runs::default();
    let layer = EngineLayer::new(engine(), by_id).lease(10 * SEC).wait_timeout(Duration::ZERO);
    let jobs = slow(&layer, &runs, 5 * SEC);
    assert!(
        tokio::time::timeout(SEC, send(&jobs, job("a"))).await.is_err(),
        "it is dropped in the middle"
    );
    assert_eq!(runs.count(), 1);
    let refused = send(&jobs, job("a")).await;
    assert!(matches!(refused, Err(JobError::Rejected(Rejected::InFlight { .. }))), "{refused:?}");
    tokio::time::sleep(10 * SEC).await;
    assert_eq!(send(&jobs, job("a")).await.unwrap().run, 2);
}

#[tokio::test(start_paused = true)]
async fn run_5_dropped_while_it_runs_the_key_is_freed_where_the_layer_says_so() {
    let runs = Runs::default();
    let layer = EngineLayer::new(engine(), by_id).on_drop(OnDrop::Release);
    let jobs = slow(&layer, &runs, 5 * SEC);
    assert!(tokio::time::timeout(SEC, send(&jobs, job("a"))).await.is_err());
    // This call waits only for the release, which happens in the background, and not for the end of
    // the lease of 30 s.
    let began = tokio::time::Instant::now();
    assert_eq!(send(&jobs, job("a")).await.unwrap().run, 2);
    assert!(began.elapsed() < 20 * SEC);
}

#[tokio::test(start_paused = true)]
async fn run_5_http_12_on_its_own_task_the_work_outlives_its_caller() {
    let runs = Runs::default();
    let engine = engine();
    let jobs = slow(&EngineLayer::new(engine.clone(), by_id).on_own_task(), &runs, 5 * SEC);
    assert!(tokio::time::timeout(SEC, send(&jobs, job("a"))).await.is_err());
    assert_eq!(send(&jobs, job("a")).await.unwrap().run, 1, "it waits for the first run");
    assert!(tokio::time::timeout(SEC, send(&jobs, job("b"))).await.is_err());
    assert_eq!(engine.shutdown(60 * SEC).await, 0, "shutdown waits for the work");
    assert_eq!(send(&jobs, job("b")).await.unwrap().run, 2);
}
