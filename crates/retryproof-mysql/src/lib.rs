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
mod pool;
mod record;
mod schema;
mod statement;
mod store;
mod waiters;

pub use config::MysqlConfig;
#[cfg(feature = "sqlx-08")]
pub use join::sqlx_08;
pub use join::{MysqlDialect, MysqlTx};
pub use schema::schema_sql;
pub use sqlx_mysql::MySqlPool;
pub use store::MysqlStore;
