// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs code that may panic (an action, a store, a codec, an observer) and returns its panic as an
//! `Err`.
//!
//! Nothing that the code borrowed is read again after a panic, so `AssertUnwindSafe` is sound here:
//! a future that panicked is dropped, and a closure runs once.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// A panic's payload; [`resume_unwind`](std::panic::resume_unwind) continues the panic.
pub type Panic = Box<dyn Any + Send>;

/// Runs `work` and catches its panic.
///
/// # Errors
/// The panic of `work`.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work))
}

/// Polls `future` until it completes or panics. The caller pins the future, so that it is not
/// stored twice.
///
/// # Errors
/// The panic of `future`. After a panic, the future must not be polled again.
pub async fn catch_panic_of<F: Future>(mut future: Pin<&mut F>) -> Result<F::Output, Panic> {
    poll_fn(|cx| match catch_panic(|| future.as_mut().poll(cx)) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}
