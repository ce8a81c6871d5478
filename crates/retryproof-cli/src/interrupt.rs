// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Interrupt`]: lets Ctrl-C end a long verb between two steps.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::exit::{self, VerbError};

/// Receives Ctrl-C, which then no longer ends the process.
#[derive(Debug)]
pub(crate) struct Interrupt(Arc<Notify>);

impl Interrupt {
    /// Starts to listen for the signal. Needs a runtime.
    pub(crate) fn new() -> Self {
        let received = Arc::new(Notify::new());
        let notify = Arc::clone(&received);
        tokio::spawn(async move {
            // If the signal handler cannot be installed, Ctrl-C ends the program as usual.
            if tokio::signal::ctrl_c().await.is_ok() {
                notify.notify_one();
            }
        });
        Self(received)
    }

    /// Waits for the signal. A signal ends one wait, even if it arrived before the wait.
    pub(crate) async fn received(&self) {
        self.0.notified().await;
    }

    /// Awaits a step, but returns an error if the signal arrives first.
    pub(crate) async fn or<T>(&self, step: impl Future<Output = T>) -> Result<T, VerbError> {
        tokio::select! {
            biased;
            () = self.received() => Err(VerbError::new(exit::INTERRUPTED, "interrupted")),
            done = step => Ok(done),
        }
    }

    /// Has the same effect as the signal.
    #[cfg(test)]
    pub(crate) fn send(&self) {
        self.0.notify_one();
    }
}
