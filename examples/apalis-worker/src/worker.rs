// SPDX-License-Identifier: MIT OR Apache-2.0
//! The worker and its layers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apalis::prelude::{Data, MemoryStorage, TaskSink as _, WorkerBuilder, WorkerBuilderExt as _};
use retryproof::IdempotencyEngine;
use retryproof::tower::EngineLayer;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::BoxError;
use crate::job::{ByOrder, Invoice};
use crate::mail::Mailer;
use crate::patience::Patience;

/// How many jobs run at the same time.
pub const CONCURRENCY: usize = 4;

/// The result of a job. The result is stored, and every duplicate of the job returns it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mailed {
    /// The order.
    pub order: String,
}

/// Counts the finished jobs by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Jobs that are done, now or in an earlier run.
    pub done: usize,
    /// Jobs that were given up. They stay in the outbox and are delivered again.
    pub failed: usize,
}

async fn mail<M: Mailer>(invoice: Invoice, mailer: Data<M>) -> Result<Mailed, BoxError> {
    mailer.send(&invoice).await?;
    Ok(Mailed { order: invoice.order })
}

/// Runs the jobs until each is done or given up.
///
/// # Errors
/// If the worker fails.
pub async fn work<M: Mailer>(
    engine: IdempotencyEngine,
    mailer: M,
    jobs: Vec<Invoice>,
    patience: Patience,
) -> Result<Tally, BoxError> {
    let expected = jobs.len();
    if expected == 0 {
        return Ok(Tally { done: 0, failed: 0 });
    }
    let mut queue = MemoryStorage::new();
    for job in jobs {
        queue.push(job).await.map_err(|error| error.to_string())?;
    }
    let ended = Arc::new(Ended::default());
    let once = EngineLayer::new(engine, ByOrder)
        .ttl(Duration::from_secs(7 * 86_400))
        .lease(Duration::from_secs(2));
    let count = Arc::clone(&ended);
    // The first layer is the outermost. The retry layer is outside the guard, so each attempt goes
    // through the guard. While a job waits for its next attempt, it still counts towards
    // `CONCURRENCY`.
    let worker = WorkerBuilder::new("invoices")
        .backend(queue)
        .concurrency(CONCURRENCY)
        .map_result(move |result: Result<Mailed, BoxError>| {
            count.one(result.is_ok(), expected);
            result
        })
        .retry(patience)
        .layer(once)
        .data(mailer)
        .build(mail::<M>);
    let stop = Arc::clone(&ended);
    worker
        .run_until(async move {
            stop.all.notified().await;
            Ok::<_, std::io::Error>(())
        })
        .await
        .map_err(|error| error.to_string())?;
    Ok(Tally {
        done: ended.done.load(Ordering::SeqCst),
        failed: ended.failed.load(Ordering::SeqCst),
    })
}

/// Counts the finished jobs.
#[derive(Default)]
struct Ended {
    done: AtomicUsize,
    failed: AtomicUsize,
    both: AtomicUsize,
    all: Notify,
}

impl Ended {
    fn one(&self, is_done: bool, expected: usize) {
        if is_done { &self.done } else { &self.failed }.fetch_add(1, Ordering::SeqCst);
        if self.both.fetch_add(1, Ordering::SeqCst) + 1 == expected {
            self.all.notify_one();
        }
    }
}
