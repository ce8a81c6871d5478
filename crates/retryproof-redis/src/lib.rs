// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod config;
mod error;
mod gather;
mod inspect;
mod link;
mod record;
mod route;
mod script;
mod sentinel;
mod server;
mod store;
mod url;
mod wait;
mod wake;

pub use config::RedisConfig;
pub use store::RedisStore;
