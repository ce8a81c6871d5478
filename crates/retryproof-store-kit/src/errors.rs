// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors that every store returns with the same text.

use retryproof_core::{Error, ErrorKind};

/// Returns the error for a record with a value that this version does not write. The store leaves
/// such a record unchanged (CMP-8). `field` names the part that could not be read.
#[must_use]
#[cold]
pub fn unreadable(field: &'static str) -> Error {
    Error::corrupt(
        "the record contains a value that this version of retryproof never writes; inspect the \
         record, or delete it by hand",
    )
    .with("field", field)
}

/// Changes the kind of an error from `Config` to `Unavailable`, for a store that has connected
/// before.
///
/// A certificate, password or address that is refused now was accepted at `connect`. The server may
/// accept it again in a moment, for example after a late certificate renewal or a proxy's restart.
/// The engine repeats a completion only after `Unavailable`. If the engine did not repeat the
/// completion, the work could run again (CMP-3).
#[must_use]
pub fn while_running(error: Error) -> Error {
    if error.kind() != ErrorKind::Config {
        return error;
    }
    Error::unavailable(
        "the server no longer accepts the store's settings, which it accepted at `connect`; see \
         the error's source",
    )
    .because(error)
}

/// Returns the error for an intervention that failed at every attempt because other callers changed
/// the record each time (OPS-3).
#[must_use]
#[cold]
pub fn changed_meanwhile() -> Error {
    Error::unavailable(
        "the record was not changed, because other calls changed it during each attempt; read the \
         record and try again",
    )
    .during("force")
}

/// Returns the error for a value that is larger than the store accepts (CMP-9).
#[must_use]
#[cold]
pub fn too_large(bytes: usize, limit: usize) -> Error {
    Error::new(ErrorKind::TooLarge, "the value is larger than the store accepts")
        .with("bytes", bytes)
        .with("limit", limit)
}
