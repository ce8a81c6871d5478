// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine for programs without a runtime. Its names and semantics are those of the async
//! engine, but its calls block.
//!
//! An [`Engine`] contains a small runtime for heartbeats, the store's connections and other
//! background work. The runtime keeps running while an action blocks the calling thread. Inside
//! another runtime, every call returns an error, because it would block that runtime.
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! use retryproof::{IdempotencyContext, Outcome, blocking};
//!
//! let url = "sqlite:exports.db";
//! # let file = std::env::temp_dir().join(format!("retryproof-blocking-{}.db", std::process::id()));
//! # let _ = std::fs::remove_file(&file);
//! # let url = &format!("sqlite:{}", file.display());
//! blocking::migrate(url)?; // where your other migrations run
//! let engine = blocking::connect(url)?;
//! let run = || -> Result<_, Box<dyn std::error::Error>> {
//!     let ctx = IdempotencyContext::builder("exports", "2026-11").build()?;
//!     Ok(engine.execute(ctx, || Ok::<_, std::io::Error>("exports/2026-11.csv".to_owned()))?)
//! };
//! assert_eq!(run()?, Outcome::Executed("exports/2026-11.csv".to_owned()));
//! assert_eq!(run()?, Outcome::Replayed("exports/2026-11.csv".to_owned()));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use retryproof_core::blocking::*;
use retryproof_core::store::StoreFinding;
use retryproof_core::{IdempotencyConfig, IdempotencyEngine, Result};

/// Opens the store that `url` names and returns an engine with default settings. This function is
/// [`connect`](crate::connect()) for programs without a runtime.
///
/// The store connects in the engine's runtime, so its connections live as long as the engine.
///
/// # Errors
/// The errors of [`connect`](crate::connect()) and [`Engine::new`]; `Unsupported` inside a runtime.
pub fn connect(url: &str) -> Result<Engine> {
    Engine::make(async { Ok(IdempotencyEngine::new(crate::connect(url).await?)) })
}

/// Like [`connect()`], with the store and all settings of a configuration; see
/// [`connect_with`](crate::connect_with).
///
/// # Errors
/// The errors of [`connect_with`](crate::connect_with) and [`Engine::new`]; `Config` for an invalid
/// setting; `Unsupported` inside a runtime.
pub fn connect_with(config: &IdempotencyConfig) -> Result<Engine> {
    Engine::make(async {
        let store = crate::connect_with(config).await?;
        IdempotencyEngine::builder(store).config(config.clone()).build()
    })
}

/// Creates or updates the tables of the store that `url` names. This function is
/// [`migrate`](crate::migrate) for programs without a runtime.
///
/// # Errors
/// The errors of [`migrate`](crate::migrate); `Unsupported` inside a runtime.
pub fn migrate(url: &str) -> Result<()> {
    run(crate::migrate(url))
}

/// Like [`migrate()`], for the store that the configuration names; see
/// [`migrate_with`](crate::migrate_with).
///
/// # Errors
/// The errors of [`migrate_with`](crate::migrate_with); `Unsupported` inside a runtime.
pub fn migrate_with(config: &IdempotencyConfig) -> Result<()> {
    run(crate::migrate_with(config))
}

/// Looks for problems of the store that the configuration names; see
/// [`diagnose_with`](crate::diagnose_with).
///
/// # Errors
/// The errors of [`diagnose_with`](crate::diagnose_with); `Unsupported` inside a runtime.
pub fn diagnose_with(config: &IdempotencyConfig) -> Result<Vec<StoreFinding>> {
    run(crate::diagnose_with(config))
}
