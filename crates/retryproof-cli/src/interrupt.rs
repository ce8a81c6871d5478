// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Interrupt`]: lets Ctrl-C end a long verb between two steps.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use crate::exit::{self, VerbError};

/// Receives Ctrl-C, which then no longer ends the process.
#[derive(Debug)]
pub(crate) struct Interrupt(Arc<Notify>);

impl Interrupt {
    /// Starts to listen for the signal immediately. The caller must be inside a Tokio runtime.
    pub(crate) fn new() -> Self {
        let received = Arc::new(Notify::new());
        let notify = Arc::clone(&received);
        let mut signal = Box::pin(tokio::signal::ctrl_c());
        // The first poll installs the signal handler.
        let first = signal.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        tokio::spawn(async move {
            let arrived = match first {
                Poll::Ready(arrived) => arrived,
                Poll::Pending => signal.await,
            };
            // If the signal handler cannot be installed, Ctrl-C ends the program as usual.
            if arrived.is_ok() {
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
