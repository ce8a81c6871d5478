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
//! It uses rusqlite 0.37 to 0.41. A program that depends on the crate `retryproof` writes
//! `retryproof::sqlite` for `retryproof_sqlite` of the examples, and `retryproof` for
//! `retryproof_core`.
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
//! - **Durable.** A result that was returned to a caller survives the death of the process, and with
//!   the default [`Synchronous::Full`] a power loss. With [`Synchronous::Normal`] a power loss may
//!   lose the last commits.
//! - **Several processes** may open one file. A duplicate in one process gets the result of another
//!   within milliseconds: waiters are woken in the same process, and check every 2 to 20 ms whether
//!   another process has written (ACQ-4).
//! - **Fencing tokens** of the whole file only grow, even after purges, restarts and when the clock
//!   steps back (ACQ-10).
//! - **Explicit migration.** Tables are created only by [`SqliteStore::migrate`],
//!   [`SqliteConfig::migrate`] or by your own migrator with [`schema_sql`] (STO-3). They may be in
//!   the database file of the application.
//!
//! # One commit for the writes and the record
//! If the application's tables are in the same file, the record can join the transaction that writes
//! them (CMP-7): both commit, or neither.
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
//! A program that opens its transactions itself acquires the lease, and calls
//! `held.complete_in(&mut tx, value)` as the last statement of a [`rusqlite::Transaction`]; see
//! [`HeldLease::complete_in`](retryproof_core::HeldLease::complete_in). Begin the transaction
//! `IMMEDIATE`, and after the lease was granted: the grant is a write to the same file, which an open
//! transaction would block.
//!
//! # Limits
//! - Only local file systems work, because WAL needs shared memory.
//! - Expiry follows the host's wall clock. If it jumps, leases end early or late by the same time;
//!   tokens stay in order.
//! - A write transaction of the application on the same file delays every acquire, heartbeat and
//!   completion while it is open. A lease whose heartbeats are delayed for longer than 0.4 of it is
//!   lost: as soon as the file is free, its key is taken over, while its holder still works. So
//!   transactions that the engine opens may last at most a third of the shortest lease in the file:
//!   see [`SqliteTxSource`]. Transactions that the application begins are not limited: keep them as
//!   short.
//! - A process that is paused during a commit (a debugger, a suspended machine) keeps the file
//!   locked until it continues or dies. Meanwhile new keys fail as unavailable, and replays work.
//! - Purging does not shrink the file; run `VACUUM` at a quiet time if it should.

mod config;
mod connection;
mod error;
mod execute;
mod inspect;
mod join;
mod pool;
mod record;
mod schema;
mod statement;
mod store;
mod waiters;

pub use config::{SqliteConfig, Synchronous};
pub use join::SqliteDialect;
pub use join::transaction::{SqliteTx, SqliteTxSource};
pub use schema::schema_sql;
pub use store::SqliteStore;
