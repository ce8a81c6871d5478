// SPDX-License-Identifier: MIT OR Apache-2.0
//! tower's contract: the layer calls only a service that has reported that it is ready, and never a
//! clone of that service.

use std::future::{Ready, poll_fn, ready};
use std::task::{Context, Poll};

use retryproof_core::Rejected;
use retryproof_tower::EngineLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt as _};

use crate::world::{Job, JobError, Runs, SEC, by_id, engine, job, slow};

/// A service that panics if it is called without having been ready. A clone is not ready, even if
/// the original is.
struct Strict {
    ready: bool,
    polls: Runs,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false, polls: self.polls.clone() }
    }
}

impl Service<Job> for Strict {
    type Response = usize;
    type Error = Rejected;
    type Future = Ready<Result<usize, Rejected>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Rejected>> {
        if !self.ready {
            self.polls.run();
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Job) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being polled ready");
        ready(Ok(self.polls.count()))
    }
}

#[tokio::test(start_paused = true)]
async fn tower_the_service_that_was_polled_ready_is_the_one_that_is_called() {
    let polls = Runs::default();
    let strict = Strict { ready: false, polls: polls.clone() };
    let mut jobs = EngineLayer::new(engine(), by_id).layer(strict);
    for (id, ready) in [("a", 1), ("b", 2), ("a", 3)] {
        let run = jobs.ready().await.unwrap().call(job(id)).await.unwrap();
        assert_eq!(polls.count(), ready);
        assert_eq!(run, if id == "a" { 1 } else { 2 });
    }
    let refused = jobs.ready().await.unwrap().call(job(""));
    assert!(matches!(refused.await, Err(Rejected::Store(_))));
    jobs.ready().await.unwrap();
    assert_eq!(
        polls.count(),
        4,
        "a request that was refused before any look leaves the service ready"
    );
}

#[tokio::test(start_paused = true)]
async fn tower_readiness_is_the_inner_services() {
    let runs = Runs::default();
    let layer = EngineLayer::new(engine(), by_id);
    // The service inside the engine's layer handles only one call at a time.
    let limited =
        tower::layer::layer_fn(|inner| layer.layer(ConcurrencyLimitLayer::new(1).layer(inner)));
    let mut jobs = slow(&limited, &runs, SEC);
    let first = jobs.ready().await.unwrap().call(job("a"));
    let is_ready = |jobs: &mut crate::world::Jobs| {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        jobs.poll_ready(&mut cx).is_ready()
    };
    assert!(!is_ready(&mut jobs), "the only permit is taken");
    assert_eq!(first.await.unwrap().run, 1);
    poll_fn(|cx| jobs.poll_ready(cx)).await.unwrap();
    // A replay returns the permit of the concurrency limit, too.
    assert_eq!(jobs.call(job("a")).await.unwrap().run, 1);
    assert_eq!(jobs.ready().await.unwrap().call(job("b")).await.unwrap().run, 2);
}

/// A service whose readiness check fails.
#[derive(Clone)]
struct Sick;

impl Service<Job> for Sick {
    type Response = ();
    type Error = JobError;
    type Future = Ready<Result<(), JobError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        Poll::Ready(Err(JobError::Failed(0)))
    }

    fn call(&mut self, _: Job) -> Self::Future {
        unreachable!("it never was ready")
    }
}

#[tokio::test(start_paused = true)]
async fn tower_an_error_of_readiness_is_handed_on() {
    let mut jobs = EngineLayer::new(engine(), by_id).layer(Sick);
    assert!(matches!(jobs.ready().await, Err(JobError::Failed(0))));
}
