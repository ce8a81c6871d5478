// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs code that may panic (an action, a store, a codec, an observer) and returns its panic as an
//! `Err`.
//!
//! What the code borrowed is not read again after a panic, which is why `AssertUnwindSafe` is sound
//! here: a future that panicked is dropped, and a closure runs once.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// What a panic carried; [`resume_unwind`](std::panic::resume_unwind) continues it.
pub type Panic = Box<dyn Any + Send>;

/// Runs `work`.
///
/// # Errors
/// The panic of `work`.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work))
}

/// Polls `future` to its end or to its panic. The caller pins it, so that it is not held twice.
///
/// # Errors
/// The panic of `future`, which must not be polled again then.
pub async fn catch_panic_of<F: Future>(mut future: Pin<&mut F>) -> Result<F::Output, Panic> {
    poll_fn(|cx| match catch_panic(|| future.as_mut().poll(cx)) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}
