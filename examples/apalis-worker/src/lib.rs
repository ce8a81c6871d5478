// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invoices are mailed by apalis workers. The outbox that feeds them delivers at least once: a line
//! may stand in it twice, and all of it is delivered again when the program starts again, as after
//! a crash. Still, each invoice is mailed once.
//!
//! The queue is apalis's own in memory. Its SQL backends bring a second SQLite (apalis-sqlite and
//! apalis-postgres 1.0 both pin sqlx's), which cannot be linked beside the one of retryproof's
//! SQLite store; with another store they can be used, and nothing here changes.

pub mod demo;
pub mod job;
pub mod mail;
pub mod patience;
pub mod worker;

/// Whatever ends a command or fails a job.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
