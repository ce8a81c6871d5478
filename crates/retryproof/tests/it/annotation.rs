// SPDX-License-Identifier: MIT OR Apache-2.0
//! What annotated functions and methods do (ANN-1, ANN-4, ANN-5); endpoints have a separate file.

#[cfg(feature = "blocking")]
mod blocking;
#[cfg(feature = "axum")]
mod endpoint;
mod fate;
mod function;
mod method;
#[cfg(feature = "seal")]
mod subject;

use std::sync::atomic::{AtomicU32, Ordering};

use retryproof::{ErrorKind, Rejected};

/// Counts the runs of a body.
#[derive(Debug, Default)]
struct Runs(AtomicU32);

impl Runs {
    /// Counts a run, and returns its number.
    fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The error of the annotated functions here.
#[derive(Debug)]
enum Failure {
    Own(&'static str),
    Rejected(Rejected),
}

impl From<Rejected> for Failure {
    fn from(rejected: Rejected) -> Self {
        Self::Rejected(rejected)
    }
}

impl Failure {
    /// Returns the whole seconds of `InFlight`, or `None`.
    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Rejected(Rejected::InFlight { retry_after }) => Some(retry_after.as_secs()),
            _ => None,
        }
    }

    /// Returns the kind of a store error, or `None`.
    fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Rejected(Rejected::Store(error)) => Some(error.kind()),
            _ => None,
        }
    }
}
