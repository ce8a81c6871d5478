// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one wrapper around store calls: each ends within `operation-timeout`, and a store that keeps
//! failing is probed by one call at a time while the others fail fast (STO-5).

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::running::Running;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::lock::Mutex;

/// Failures in a row after which new calls probe one at a time.
const FAILURES: u32 = 5;

#[derive(Debug)]
pub(crate) struct Gate {
    operation_timeout: Duration,
    failures: AtomicU32,
    /// Since when a call probes.
    probing: Mutex<Option<Instant>>,
}

/// Leave to make one call. While the store keeps failing there is only one.
/// A pointer, for each call holds one, and seldom a probe.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    _probe: Option<Box<Probe<'a>>>,
}

#[derive(Debug)]
struct Probe<'a> {
    gate: &'a Gate,
    since: Instant,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        // Not the place of a later one.
        self.gate.probing.lock().take_if(|probing| *probing == self.since);
    }
}

impl Gate {
    pub(crate) fn new(operation_timeout: Duration) -> Self {
        Self { operation_timeout, failures: AtomicU32::new(0), probing: Mutex::new(None) }
    }

    pub(crate) fn operation_timeout(&self) -> Duration {
        self.operation_timeout
    }

    /// For acquires and looks: fails fast while another call probes a failing store.
    ///
    /// A probe is over after `operation-timeout` whether it says so or not: it may be in a future
    /// that nobody polls.
    #[inline]
    pub(crate) fn enter(&self, now: impl FnOnce() -> Instant) -> Result<Pass<'_>> {
        if self.failures.load(Ordering::Relaxed) < FAILURES {
            return Ok(Pass { _probe: None });
        }
        self.probe(now())
    }

    #[cold]
    fn probe(&self, now: Instant) -> Result<Pass<'_>> {
        let mut probing = self.probing.lock();
        if probing.is_some_and(|since| now < since + self.operation_timeout) {
            return Err(Error::unavailable(
                "the store keeps failing; one call at a time probes it",
            ));
        }
        *probing = Some(now);
        Ok(Pass { _probe: Some(Box::new(Probe { gate: self, since: now })) })
    }

    pub(crate) fn answered(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn failed(&self, error: &Error) {
        if error.kind() == ErrorKind::Unavailable {
            // Saturating: the count only has to pass the bound.
            let _ = self
                .failures
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_add(1)));
        } else {
            self.answered();
        }
    }

    /// One call of a running holder: always tried, under the time-out.
    pub(crate) async fn always<T>(
        &self,
        operation: &'static str,
        identity: &Identity,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.within(self.operation_timeout, operation, identity, call).await
    }

    /// One call with a bound of its own: it may sleep by design for part of it, or have less time
    /// left than others.
    pub(crate) async fn within<T>(
        &self,
        bound: Duration,
        operation: &'static str,
        identity: &Identity,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut call = pin!(call);
        let answer = match poll_once(call.as_mut()).await {
            Some(answer) => answer,
            None => timeout(bound, call).await.unwrap_or_else(|_| {
                Err(Error::unavailable("no answer in time")
                    .with("after", format_args!("{bound:?}")))
            }),
        };
        match answer {
            Ok(value) => {
                self.answered();
                Ok(value)
            }
            Err(error) => {
                self.failed(&error);
                Err(error.during(operation).for_identity(identity))
            }
        }
    }
}

/// The output of a future that is ready at its first poll: a store in memory answers there, and no
/// timer has to be made for it.
pub(crate) async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// A future that is finished on the runtime when its caller goes away: a call in flight is never
/// dropped half way (ACQ-11, RUN-5). A shutdown waits for it then.
pub(crate) struct Finish<F: Future + Send + 'static>
where
    F::Output: Send,
{
    future: Option<Pin<Box<F>>>,
    runtime: Handle,
    running: Arc<Running>,
}

impl<F: Future + Send + 'static> Finish<F>
where
    F::Output: Send,
{
    pub(crate) fn new(runtime: Handle, running: Arc<Running>, future: F) -> Self {
        Self { future: Some(Box::pin(future)), runtime, running }
    }
}

impl<F: Future + Send + 'static> Future for Finish<F>
where
    F::Output: Send,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        // Taken out: one that panics is over, and is not to be polled again in the background.
        let Some(mut future) = self.future.take() else { return Poll::Pending };
        let answer = future.as_mut().poll(cx);
        if answer.is_pending() {
            self.future = Some(future);
        }
        answer
    }
}

impl<F: Future + Send + 'static> Drop for Finish<F>
where
    F::Output: Send,
{
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            // A runtime that has shut down drops it: then the lease runs out.
            let ending = self.running.ending();
            drop(self.runtime.spawn(async move {
                future.await;
                drop(ending);
            }));
        }
    }
}
