// SPDX-License-Identifier: MIT OR Apache-2.0
//! The SQLite store of `retryproof`: records in one local file, for one process or several on the same machine.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = std::env::temp_dir().join(format!("retryproof-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory)?;
//! # let file = directory.join("records.db");
//! use retryproof_sqlite::SqliteStore;
//!
//! SqliteStore::migrate(&file)?; // once, or at each start: it is idempotent
//! let store = SqliteStore::open(&file)?.into_shared();
//! # drop(store);
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! - **Durable.** A result that a caller was told of survives the death of the process, and with the default
//!   [`Synchronous::Full`] a power loss. With [`Synchronous::Normal`] a power loss may forget the last commits.
//! - **Several processes** may open one file. A duplicate in one of them gets the result of the other within milliseconds:
//!   waiters are woken in the same process, and ask every 2 to 20 ms whether another one has written (ACQ-4).
//! - **Fencing tokens** of the whole file only grow, over purges, restarts and a clock that steps back (ACQ-10).
//! - **Nothing behind your back.** No table is made but by [`SqliteStore::migrate`], [`SqliteConfig::migrate`] or your own migrator
//!   with [`schema_sql`] (STO-3). The tables may live in the file of the application.
//!
//! # Limits
//! - A local file system only: WAL needs shared memory.
//! - Expiry follows the host's wall clock; when that jumps, leases end early or late by as much (tokens stay in order).
//! - A write transaction of the application on the same file holds up every acquire, beat and completion for its length: keep it
//!   short against the lease. Takeovers are held up too, so it is safe.
//! - A process that is stopped in the middle of a commit (a debugger, a suspended machine) keeps the file locked until it goes on or dies:
//!   new keys are refused as unavailable meanwhile, replays are served.
//! - The file does not shrink by purging; run `VACUUM` in a quiet hour if it must.

mod config;
mod desk;
mod error;
mod file;
mod inspect;
mod pause;
mod reader;
mod record;
mod schema;
mod step;
mod store;
mod wake;
mod writer;

pub use config::{SqliteConfig, Synchronous};
pub use schema::schema_sql;
pub use store::SqliteStore;
