// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error type of the decoder of SQLite's rows, at the path at which the decoder expects it.

/// Why a row was not read.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The row is not one that the store writes.
    Store(retryproof_core::Error),
    /// SQLite failed.
    Driver(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Driver(error)
    }
}
