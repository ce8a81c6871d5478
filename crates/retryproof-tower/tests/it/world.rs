// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests share: a job, an engine, and a service that counts its runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::{IdempotencyEngine, Rejected};
use retryproof_memory::MemoryStore;
use serde::{Deserialize, Serialize};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt as _, service_fn};

pub(crate) const SEC: Duration = Duration::from_secs(1);

/// The time limit for a call, so that a hanging test ends. With paused time, the limit costs
/// nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) amount: u64,
}

pub(crate) fn job(id: &str) -> Job {
    Job { id: id.to_owned(), amount: 7 }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) run: usize,
    pub(crate) amount: u64,
}

/// The error of a service, which can also be a refusal of the layer.
#[derive(Debug)]
pub(crate) enum JobError {
    Failed(usize),
    Rejected(Rejected),
}

impl From<Rejected> for JobError {
    fn from(rejected: Rejected) -> Self {
        Self::Rejected(rejected)
    }
}

/// Counts runs.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<AtomicUsize>);

impl Runs {
    pub(crate) fn run(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

pub(crate) fn engine() -> IdempotencyEngine {
    IdempotencyEngine::new(MemoryStore::new())
}

/// Returns the scope and the key of a job: the extractor of the tests.
pub(crate) fn by_id(job: &Job) -> (&'static str, String) {
    ("jobs", job.id.clone())
}

pub(crate) type Jobs = BoxCloneSyncService<Job, Receipt, JobError>;

/// Returns a service that takes `time` for a job, behind `layer`.
pub(crate) fn slow<L>(layer: &L, runs: &Runs, time: Duration) -> Jobs
where
    L: Layer<Jobs>,
    L::Service: tower::Service<Job, Response = Receipt, Error = JobError, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let runs = runs.clone();
    let work = service_fn(move |job: Job| {
        let runs = runs.clone();
        async move {
            let run = runs.run();
            if !time.is_zero() {
                tokio::time::sleep(time).await;
            }
            Ok(Receipt { run, amount: job.amount })
        }
    });
    BoxCloneSyncService::new(layer.layer(BoxCloneSyncService::new(work)))
}

/// Makes one call, after the service was polled ready.
pub(crate) async fn send(service: &Jobs, job: Job) -> Result<Receipt, JobError> {
    tokio::time::timeout(PATIENCE, service.clone().oneshot(job)).await.expect("an answer")
}
