// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod cache;
mod cipher;
mod master;
mod memory;
mod seals;
#[cfg(feature = "sqlite")]
mod sqlite;
mod table;

pub use cipher::DataKey;
pub use master::{KeyProvider, MasterKeys, ProviderFuture, WrappedKey};
pub use memory::MemoryKeyTable;
pub use seals::{Destruction, Seals};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteKeyTable;
pub use table::{KeyId, KeyRow, KeyTable, TableFuture};
