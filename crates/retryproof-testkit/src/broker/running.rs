// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Running`]: a listener that runs in a separate task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use retryproof_core::Result;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{PATIENCE, until};

/// The stop signal of a listener.
pub type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A listener that runs until it is stopped or its runtime ends.
#[derive(Debug)]
pub struct Running {
    stop: Arc<Notify>,
    heard: Arc<AtomicBool>,
    task: JoinHandle<Result<()>>,
}

impl Running {
    /// Runs `listener` in a separate task, inside a tokio runtime.
    pub fn start<Fut>(listener: impl FnOnce(Stop) -> Fut) -> Self
    where
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        let (stop, heard) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (says, hears) = (Arc::clone(&stop), Arc::clone(&heard));
        let stopped = Box::pin(async move {
            says.notified().await;
            hears.store(true, Ordering::SeqCst);
        });
        Self { stop, heard, task: tokio::spawn(listener(stopped)) }
    }

    /// Signals the listener to stop, and returns as soon as it has received the signal.
    ///
    /// # Panics
    /// If the listener does not receive the signal within [`PATIENCE`].
    pub async fn ask_to_stop(&self) {
        self.stop.notify_one();
        until("heard", || self.heard.load(Ordering::SeqCst)).await;
    }

    /// Stops the listener, and waits until it has ended.
    ///
    /// # Panics
    /// If the listener does not end within [`PATIENCE`], or ends with an error.
    pub async fn stop(self) {
        self.stop.notify_one();
        self.ended().await.expect("the listener should stop without an error");
    }

    /// Waits for the listener to end, whether or not [`ask_to_stop`](Self::ask_to_stop) was called.
    ///
    /// # Errors
    /// The listener's error.
    ///
    /// # Panics
    /// If the listener does not end within [`PATIENCE`], or panics.
    pub async fn ended(self) -> Result<()> {
        timeout(PATIENCE, self.task)
            .await
            .expect("the listener should stop in time")
            .expect("the listener should not panic")
    }

    /// Aborts the listener as if its process had died: no further message is answered.
    pub async fn die(self) {
        self.task.abort();
        drop(self.task.await);
    }
}
