// SPDX-License-Identifier: MIT OR Apache-2.0
//! The MySQL store on a real MariaDB: the conformance kit, then what is particular to a server.

mod conformance;
mod far;
mod hot;
mod identity;
mod joined;
#[cfg(feature = "sqlx-08")]
mod joined_sqlx_08;
mod lost;
mod recovery;
mod schema;
mod server;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod trouble;
mod wire;
