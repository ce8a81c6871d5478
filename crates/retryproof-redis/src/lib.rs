// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Redis store of `retryproof`: records in one server, or in the primary of a Sentinel group.

mod config;
mod error;
mod inspect;
mod known;
mod link;
mod record;
mod route;
mod script;
mod sentinel;
mod server;
mod store;
mod url;
mod wake;

pub use config::RedisConfig;
pub use store::RedisStore;
