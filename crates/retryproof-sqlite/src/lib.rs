// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
//! The SQLite store of `retryproof`: records in one local file, for one process or several on the
//! same machine.
//!
//! ```sh
//! cargo add retryproof --features sqlite-bundled # or `sqlite`, linked to the host's SQLite
//! cargo add rusqlite@0.41 # only for transactions that the program opens itself
//! ```
//!
//! It stands on rusqlite 0.37 to 0.41. In a program, `retryproof_sqlite` of the examples is
//! `retryproof::sqlite`, and `retryproof_core` is `retryproof`.
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
//! - **Durable.** A result that a caller was told of survives the death of the process, and with
//!   the default [`Synchronous::Full`] a power loss. With [`Synchronous::Normal`] a power loss may
//!   forget the last commits.
//! - **Several processes** may open one file. A duplicate in one of them gets the result of the
//!   other within milliseconds: waiters are woken in the same process, and ask every 2 to 20 ms
//!   whether another one has written (ACQ-4).
//! - **Fencing tokens** of the whole file only grow, over purges, restarts and a clock that steps
//!   back (ACQ-10).
//! - **Nothing behind your back.** No table is made but by [`SqliteStore::migrate`],
//!   [`SqliteConfig::migrate`] or your own migrator with [`schema_sql`] (STO-3). The tables may
//!   live in the file of the application.
//!
//! # One commit for the writes and the record
//! Where the application's tables are in the same file, the record can join their transaction
//! (CMP-7): both commit, or neither.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = std::env::temp_dir().join(format!("retryproof-doc-joined-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory)?;
//! # let file = directory.join("shop.db");
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use retryproof_core::{IdempotencyContext, IdempotencyEngine, Outcome};
//! use retryproof_sqlite::{SqliteStore, SqliteTx, SqliteTxSource};
//!
//! SqliteStore::migrate(&file)?;
//! let engine = IdempotencyEngine::new(SqliteStore::open(&file)?);
//! let joined = engine.joined(SqliteTxSource::open(&file)?)?; // at start-up: a store that cannot join is refused here
//! # rusqlite::Connection::open(&file)?.execute_batch("CREATE TABLE ledger (account TEXT, cents INTEGER)")?;
//!
//! let ctx = IdempotencyContext::builder("payments", "order-17").build()?;
//! let outcome = joined
//!     .execute(ctx, async |tx: &mut SqliteTx| {
//!         tx.execute("INSERT INTO ledger VALUES ('alice', 4200)", [])
//!     })
//!     .await?;
//! assert_eq!(outcome, Outcome::Executed(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok(())
//! # }
//! ```
//! A program that owns its transactions holds the lease itself and says
//! `held.complete_in(&mut tx, value)` as the last statement of a [`rusqlite::Transaction`]; see
//! [`HeldLease::complete_in`](retryproof_core::HeldLease::complete_in). Begin it `IMMEDIATE`, and after the
//! lease was granted: the grant is a write to the same file, which an open transaction would hold
//! up.
//!
//! # Limits
//! - A local file system only: WAL needs shared memory.
//! - Expiry follows the host's wall clock; when that jumps, leases end early or late by as much
//!   (tokens stay in order).
//! - A write transaction of the application on the same file holds up every acquire, beat and
//!   completion for its length. A lease whose beats are held up for longer than 0.4 of it is lost:
//!   its key is taken over as soon as the file is free, while its holder still works. Transactions
//!   that the engine opens are bounded for that reason, by a third of the shortest lease in the
//!   file: see [`SqliteTxSource`]. Those that the application begins itself are not: keep them as
//!   short.
//! - A process that is stopped in the middle of a commit (a debugger, a suspended machine) keeps
//!   the file locked until it goes on or dies: new keys are refused as unavailable meanwhile,
//!   replays are served.
//! - The file does not shrink by purging; run `VACUUM` in a quiet hour if it must.

mod config;
mod connection;
mod error;
mod execute;
mod inspect;
mod join;
mod pool;
mod record;
mod schema;
mod store;
mod waiters;

pub use config::{SqliteConfig, Synchronous};
pub use join::Sqlite;
pub use join::transaction::{SqliteTx, SqliteTxSource};
pub use schema::schema_sql;
pub use store::SqliteStore;
