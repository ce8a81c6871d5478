// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns a panic of a store, or of a driver's transaction, into an error of that call (STO-5), so
//! that the caller can continue.

use std::future::Future;
use std::pin::Pin;

use crate::error::{Error, Result};
use crate::panics::{Panic, catch_panic, catch_panic_of};

/// Polls a store call to completion. After a panic, the error states that the outcome is unknown.
pub(crate) async fn caught<T>(call: Pin<&mut impl Future<Output = Result<T>>>) -> Result<T> {
    catch_panic_of(call).await.unwrap_or_else(|panic| Err(panicked(panic)))
}

/// Like [`caught`], but for a call that does not await.
pub(crate) fn caught_now<T>(call: impl FnOnce() -> T) -> Result<T> {
    catch_panic(call).map_err(panicked)
}

#[cold]
fn panicked(_: Panic) -> Error {
    // The panic hook has already printed the panic's message, which may contain a key. The error
    // must not repeat the message (ID-4).
    Error::unavailable("the store panicked; it is unknown whether the call took effect")
}
