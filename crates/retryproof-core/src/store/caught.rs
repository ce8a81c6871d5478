// SPDX-License-Identifier: MIT OR Apache-2.0
//! A panic of a store, or of a driver's transaction, is a failed call (STO-5); the caller goes on.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use crate::error::{Error, Result};

/// Polls a call to its end. One that panics is over, with an error that says that its outcome is
/// not known.
pub(crate) async fn caught<T>(mut call: Pin<&mut impl Future<Output = Result<T>>>) -> Result<T> {
    poll_fn(|cx| {
        caught_now(|| call.as_mut().poll(cx)).unwrap_or_else(|error| Poll::Ready(Err(error)))
    })
    .await
}

/// The same of a call that blocks.
pub(crate) fn caught_now<T>(call: impl FnOnce() -> T) -> Result<T> {
    // The panic hook has shown the message, which may hold a key; so no error repeats it (ID-4).
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| panicked())
}

#[cold]
fn panicked() -> Error {
    Error::unavailable("the store panicked; whether the call took effect is not known")
}
