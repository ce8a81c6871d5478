// SPDX-License-Identifier: MIT OR Apache-2.0
//! The PostgreSQL store on a real server: the conformance kit, then what is particular to
//! PostgreSQL.

mod conformance;
mod far;
mod hot;
mod joined;
#[cfg(feature = "sqlx-08")]
mod joined_sqlx_08;
mod plans;
mod pushed;
mod quiet;
mod schema;
mod server;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod trouble;
mod upkeep;
mod wire;
