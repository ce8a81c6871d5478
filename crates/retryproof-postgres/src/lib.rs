// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod acquire;
mod call;
mod config;
mod courier;
mod door;
mod error;
mod group;
mod hash;
mod inspect;
mod join;
mod pool;
mod recent;
mod record;
mod schema;
mod statement;
mod store;
mod wake;

pub use config::{Pooler, PostgresConfig};
#[cfg(feature = "sqlx-08")]
pub use join::sqlx_08;
pub use join::{Postgres, PostgresTx};
pub use schema::schema_sql;
pub use sqlx_postgres::{PgConnectOptions, PgPool};
pub use store::PostgresStore;
