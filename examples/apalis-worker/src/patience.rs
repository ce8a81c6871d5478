// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a job is tried again: a refusal of the guard is not a failure of the job.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use apalis::layers::retry::Policy;
use apalis::prelude::Task;
use retryproof::Rejected;

use crate::BoxError;

/// Tries a job again as long as that can change anything.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How often a job that fails is tried again.
    pub retries: u32,
    /// How long it waits before that.
    pub pause: Duration,
}

impl Patience {
    /// How long to wait before the next try; `None` when there is none.
    pub fn after(&mut self, error: &BoxError) -> Option<Duration> {
        match error.downcast_ref::<Rejected>() {
            // Another worker is at it. That takes as long as it takes.
            Some(Rejected::InFlight { retry_after }) => return Some(*retry_after),
            // For example, the store is unavailable, or the job failed.
            Some(Rejected::Store(error)) if error.is_retryable() => {}
            None => {}
            // Done but not to be had again, another invoice of the same order, an order that cannot
            // be a key: again is no better.
            Some(_) => return None,
        }
        self.retries = self.retries.checked_sub(1)?;
        Some(self.pause)
    }
}

impl<T: Clone, R> Policy<Task<T>, R, BoxError> for Patience {
    type Future = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn retry(&mut self, _: &mut Task<T>, result: &mut Result<R, BoxError>) -> Option<Self::Future> {
        let pause = self.after(result.as_ref().err()?)?;
        Some(Box::pin(tokio::time::sleep(pause)))
    }

    fn clone_request(&mut self, task: &Task<T>) -> Option<Task<T>> {
        Some(task.clone())
    }
}
