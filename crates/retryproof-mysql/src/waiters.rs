// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Waiters`] wakes the calls that wait for a record when this process changes the record (ACQ-4).
//! Waiting calls also poll, because MySQL cannot notify them of changes by other processes.

use std::time::Duration;

use retryproof_core::{Backoff, Identity};
use retryproof_store_kit::{WaiterRegistry, wait_end, wait_for_change};

/// The pauses between a waiter's reads of its record (ACQ-4).
pub(crate) const POLL: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(40));

/// The waiters of one store in this process.
#[derive(Default)]
pub(crate) struct Waiters(WaiterRegistry<Identity>);

impl Waiters {
    /// Waits until the record has changed, its lease has ended, or `timeout` has passed.
    /// `remaining_lease` reads how much time is left in the lease that the caller saw, and returns
    /// `None` if that lease is over.
    pub(crate) async fn wait_for_change<F, E>(
        &self,
        id: &Identity,
        timeout: Duration,
        remaining_lease: impl FnMut() -> F,
    ) -> Result<(), E>
    where
        F: Future<Output = Result<Option<Duration>, E>>,
    {
        let subscription = self.0.subscribe(id.clone());
        let until = wait_end(timeout);
        wait_for_change(subscription.woken(), until, || POLL, remaining_lease).await
    }

    /// Wakes the waiters of a record. Call this after the statement has committed: a waiter that
    /// subscribes too late to be woken then reads the committed row.
    pub(crate) fn notify(&self, id: &Identity) {
        self.0.notify(id);
    }
}
