// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]
//!
//! # Design
//! A keyed hash of scope and key selects a record's shard. Every change of a record is one short
//! critical section under that shard's lock (`shard.rs`). Lookups borrow the identity and allocate
//! nothing; a replay returns a slice of the record's single allocation (`record.rs`). The table
//! grows without a stall (`table.rs`), a timer wheel finds expired records (`wheel.rs`), and the
//! bounds need no counter that all cores share (`budget.rs`).

mod budget;
mod builder;
mod busy;
mod chunked;
mod index;
mod operate;
mod record;
mod scopes;
mod shard;
mod store;
mod sweep;
mod sync;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod time;
mod upkeep;
mod wait;
mod wheel;

pub use builder::MemoryStoreBuilder;
pub use store::MemoryStore;
