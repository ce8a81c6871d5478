// SPDX-License-Identifier: MIT OR Apache-2.0
// An expansion sets off none of the lints of a strict program.
#![deny(warnings, missing_docs, unreachable_pub, missing_debug_implementations)]
#![deny(
    unused_qualifications,
    unused_lifetimes,
    elided_lifetimes_in_paths,
    rust_2018_idioms,
    single_use_lifetimes
)]
//! A strict program.

use retryproof::{IdempotencyEngine, MemoryStore, Rejected, idempotent};

/// Another type named as the expansion's own things might be.
#[derive(Debug)]
pub struct Keyed {
    engine: IdempotencyEngine,
}

impl AsRef<IdempotencyEngine> for Keyed {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.engine
    }
}

impl Keyed {
    /// Documented.
    ///
    /// # Errors
    /// When in flight.
    #[idempotent(key = id, wait_timeout = "PT0S")]
    pub async fn run(&self, id: u8, call: &str, mut engine: u8) -> Result<String, Rejected> {
        engine += id;
        Ok(format!("{call}{engine}"))
    }
}

/// Documented, and public.
#[idempotent(http)]
pub async fn pay(body: String) -> String {
    body
}

fn main() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let keyed = Keyed { engine };
    drop(keyed.run(1, "call", 2));
    drop(pay::call(String::new()));
}
