// SPDX-License-Identifier: MIT OR Apache-2.0
//! apalis workers mail invoices from an outbox, each invoice once. The outbox delivers at least
//! once: it can contain a line twice, and a restarted program reads the whole outbox again.
//!
//! The queue is apalis's own in-memory queue. apalis's SQL backends do not work with retryproof's
//! SQLite store, because a program can link only one SQLite: apalis-sqlite and apalis-postgres 1.0
//! both pin the SQLite of sqlx. With another store, the SQL backends work without further changes.

pub mod demo;
pub mod job;
pub mod mail;
pub mod patience;
pub mod worker;

/// The error of a command or of a job.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
