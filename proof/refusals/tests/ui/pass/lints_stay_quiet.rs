// SPDX-License-Identifier: MIT OR Apache-2.0
// The expansion triggers none of the lints that a strict program denies.
#![deny(warnings, missing_docs, unreachable_pub, missing_debug_implementations)]
#![forbid(unsafe_code)]
#![deny(
    clippy::pedantic,
    clippy::nursery,
    deprecated,
    future_incompatible,
    let_underscore_drop,
    missing_copy_implementations,
    non_local_definitions,
    redundant_lifetimes,
    rust_2024_compatibility,
    unused_qualifications,
    unused_lifetimes,
    elided_lifetimes_in_paths,
    rust_2018_idioms,
    single_use_lifetimes
)]
//! A strict program.

use std::fmt::Display;
use std::future::ready;

use axum::extract::Path;
use axum::http::StatusCode;
use retryproof::{IdempotencyEngine, Lease, MemoryStore, Rejected, blocking, idempotent};

/// Another type with a name that the expansion might use.
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
    #[idempotent(key = id, fingerprint = (id, call), wait_timeout = "PT0S")]
    pub async fn run(&self, id: u8, call: &str, mut engine: u8) -> Result<String, Rejected> {
        engine += id;
        ready(()).await;
        Ok(format!("{call}{engine}"))
    }

    /// Documented, and of the second edition.
    ///
    /// # Errors
    /// When in flight.
    #[deprecated(note = "use `run`")]
    #[idempotent(key = id, scope = "run.old")]
    #[must_use = "it may be in flight"]
    pub async fn run_once(&self, id: impl Display) -> Result<String, Rejected> {
        Ok(ready(id.to_string()).await)
    }
}

/// Documented, and blocking.
///
/// # Errors
/// When in flight.
#[idempotent(key = id, engine = engine, hold_when = |error| matches!(error, Rejected::Mismatch))]
pub fn import(
    engine: &blocking::Engine,
    id: u8,
    names: &mut Vec<String>,
    #[lease] lease: Lease,
) -> Result<u8, Rejected> {
    names.push(lease.downstream_key("import"));
    Ok(id)
}

/// Documented, and public.
#[idempotent(http)]
pub async fn pay(body: String) -> String {
    ready(body).await
}

/// Kept for old clients.
#[deprecated(note = "use `pay`")]
#[idempotent(http)]
pub async fn pay_once(body: String) -> String {
    ready(body).await
}

/// Kept for old clients, and deprecated below.
#[idempotent(http, scope = "older")]
#[deprecated = "use `pay`"]
pub async fn pay_twice(Path(id): Path<u8>, body: String) -> Result<String, (StatusCode, String)> {
    let _: u8 = body.parse().map_err(|_| (StatusCode::BAD_REQUEST, id.to_string()))?;
    Ok(ready(body).await)
}

#[expect(missing_docs, reason = "its name says it all")]
#[idempotent(http)]
pub async fn undocumented(body: String) -> String {
    ready(body).await
}

#[idempotent(http)]
#[allow(dead_code)]
async fn unused(body: String) -> String {
    ready(body).await
}

/// Documented, in actix.
pub mod of_actix {
    use std::future::ready;

    use actix_web::web;
    use retryproof::actix::idempotent;

    /// Documented, and public.
    #[idempotent(http)]
    pub async fn pay(id: web::Path<u8>, body: String) -> String {
        ready(format!("{id} {body}")).await
    }

    /// Kept for old clients.
    #[deprecated(note = "use `pay`")]
    #[idempotent(http)]
    pub async fn pay_once(body: String) -> String {
        ready(body).await
    }
}

fn main() {
    /// Local to a function.
    #[idempotent(http)]
    async fn local(body: String) -> String {
        ready(body).await
    }
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let keyed = Keyed { engine };
    drop(keyed.run(1, "call", 2));
    drop(pay::call(String::new()));
    drop(local::call(String::new()));
    let _ = import;
}
