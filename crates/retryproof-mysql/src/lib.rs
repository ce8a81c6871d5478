// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod call;
mod config;
mod error;
mod inspect;
mod join;
mod pool;
mod record;
mod schema;
mod session;
mod sql;
mod store;
mod tx;
mod wake;

pub use config::MysqlConfig;
pub use join::Mysql;
pub use schema::schema_sql;
pub use sqlx_mysql::MySqlPool;
pub use store::MysqlStore;
pub use tx::MysqlTx;
#[cfg(feature = "sqlx-08")]
pub use tx::sqlx_08;
