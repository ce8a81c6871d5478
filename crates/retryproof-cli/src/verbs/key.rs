// SPDX-License-Identifier: MIT OR Apache-2.0
//! `key`: prints a key for a downstream call, inside a command that `run` has started.

use std::env;

use retryproof::{Acquisition, IdempotencyContext, IdempotencyEngine, MemoryStore, Scope};

use crate::exit::{self, VerbError};
use crate::output::write_out;

/// The environment variable in which a command finds the scope of its run.
pub(crate) const SCOPE_VARIABLE: &str = "RETRYPROOF_SCOPE";
/// The environment variable in which a command finds the key of its run.
pub(crate) const KEY_VARIABLE: &str = "RETRYPROOF_KEY";

/// Prints the key that [`Lease::downstream_key`](retryproof::Lease::downstream_key) returns for the
/// scope and the key of the run.
pub(crate) async fn derive(step: &str) -> Result<u8, VerbError> {
    let (Ok(scope), Ok(key)) = (env::var(SCOPE_VARIABLE), env::var(KEY_VARIABLE)) else {
        return Err(VerbError::usage(format!(
            "{SCOPE_VARIABLE} or {KEY_VARIABLE} is not set: `retryproof key` works only in a \
             command that `retryproof run` has started"
        )));
    };
    // The printed key depends only on the scope, the key and the step. A lease from a store in
    // memory therefore derives the same key as the lease of the running command.
    let context = IdempotencyContext::builder(Scope::new(scope)?, key).build()?;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    match engine.try_acquire(&context).await? {
        Acquisition::Granted(held) => {
            write_out(format!("{}\n", held.lease().downstream_key(step)).as_bytes())?;
            Ok(exit::OK)
        }
        _ => Err(VerbError::other("a new in-memory store refused a lease")),
    }
}
