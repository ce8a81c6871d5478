// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides when to retry a job. A refusal by the guard does not always count as a failure of the
//! job.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use apalis::layers::retry::Policy;
use apalis::prelude::Task;
use retryproof::Rejected;

use crate::BoxError;

/// Retries a job as long as a retry can succeed.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How often a failed job is retried.
    pub retries: u32,
    /// How long to wait before each of these retries.
    pub pause: Duration,
}

impl Patience {
    /// Returns how long to wait before the next attempt, or `None` if there is none.
    pub fn after(&mut self, error: &BoxError) -> Option<Duration> {
        match error.downcast_ref::<Rejected>() {
            // Another worker is running the job, so wait without using up a retry.
            Some(Rejected::InFlight { retry_after }) => return Some(*retry_after),
            // The store may be briefly unavailable. `None` means that the job itself failed.
            Some(Rejected::Store(error)) if error.is_retryable() => {}
            None => {}
            // A retry would fail in the same way: for example, the result cannot be replayed, or
            // the order cannot be a key.
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
