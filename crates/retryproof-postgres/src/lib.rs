// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod audit;
mod config;
mod connection;
mod diagnose;
mod error;
mod execute;
mod inspect;
mod join;
#[cfg(feature = "seal")]
mod keys;
mod pool;
mod record;
mod schema;
mod statement;
mod store;
mod waiters;

pub use config::PostgresConfig;
pub use join::PostgresDialect;
#[cfg(feature = "sqlx-08")]
pub use join::sqlx_08;
pub use join::transaction::PostgresTx;
#[cfg(feature = "seal")]
pub use keys::PostgresKeyTable;
pub use retryproof_core::config::{Pooler, SqlDialect};
pub use schema::partitions::partitioned_schema_sql;
pub use schema::plain::plain_schema_sql;
pub use schema::schema_sql;
pub use sqlx_postgres::{PgConnectOptions, PgPool};
pub use store::PostgresStore;
