// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Running`]: a listener at work on a task of its own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use retryproof_core::Result;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{PATIENCE, until};

/// What a listener is told to stop by.
pub type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A listener at work, until it is stopped or dropped with its runtime.
#[derive(Debug)]
pub struct Running {
    stop: Arc<Notify>,
    heard: Arc<AtomicBool>,
    task: JoinHandle<Result<()>>,
}

impl Running {
    /// Runs `listener` on a task of its own, inside a tokio runtime.
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

    /// Asks it to stop, and comes back as soon as it has heard that.
    ///
    /// # Panics
    /// When it does not hear it within [`PATIENCE`].
    pub async fn ask_to_stop(&self) {
        self.stop.notify_one();
        until("heard", || self.heard.load(Ordering::SeqCst)).await;
    }

    /// Stops it.
    ///
    /// # Panics
    /// When it does not end within [`PATIENCE`], or not well.
    pub async fn stop(self) {
        self.stop.notify_one();
        self.ended().await.expect("no error");
    }

    /// How it ends by itself, or after [`ask_to_stop`](Self::ask_to_stop).
    ///
    /// # Errors
    /// The listener's.
    ///
    /// # Panics
    /// When it does not end within [`PATIENCE`], or panics.
    pub async fn ended(self) -> Result<()> {
        timeout(PATIENCE, self.task).await.expect("it ends").expect("no panic")
    }

    /// As a process that dies: nothing is answered any more.
    pub async fn die(self) {
        self.task.abort();
        drop(self.task.await);
    }
}
