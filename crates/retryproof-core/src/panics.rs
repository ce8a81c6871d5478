// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs code that can panic (an action, a store, a codec, an observer) and returns its panic as an
//! `Err`. A panic in a store or in a driver's transaction becomes an error of the call (STO-5), and
//! the caller can continue.
//!
//! `AssertUnwindSafe` is acceptable here: a future that panicked is not polled again, and a closure
//! runs once. A store or an observer is called again after a panic, so it must keep its own state
//! valid.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use crate::error::Error;

/// A panic's payload; [`resume_unwind`](std::panic::resume_unwind) continues the panic.
pub type Panic = Box<dyn Any + Send>;

/// Runs `work` and catches its panic.
///
/// # Errors
/// The panic of `work`.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work))
}

/// Polls `future` until it completes or panics. The caller pins the future, so that this function
/// does not store the future a second time.
///
/// # Errors
/// The panic of `future`. After a panic, the future must not be polled again.
pub fn catch_panic_of<F: Future>(
    mut future: Pin<&mut F>,
) -> impl Future<Output = Result<F::Output, Panic>> {
    poll_fn(move |cx| match catch_panic(|| future.as_mut().poll(cx)) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
}

/// Polls a store call to completion. If the call panics, returns an error which says that the
/// outcome is unknown.
pub(crate) async fn caught<T>(
    call: Pin<&mut impl Future<Output = Result<T, Error>>>,
) -> Result<T, Error> {
    catch_panic_of(call).await.unwrap_or_else(|panic| Err(panicked(panic)))
}

/// Like [`caught`], but for a call that does not await.
pub(crate) fn caught_now<T>(call: impl FnOnce() -> T) -> Result<T, Error> {
    catch_panic(call).map_err(panicked)
}

#[cold]
fn panicked(_: Panic) -> Error {
    // Do not repeat the panic's message in the error, because the message can contain a key (ID-4).
    // The panic hook has already printed it.
    Error::unavailable("the store panicked; it is unknown whether the call took effect")
}
