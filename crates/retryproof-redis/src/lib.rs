// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod cluster;
mod config;
mod connection;
mod diagnose;
mod error;
mod execute;
mod identities;
mod identity_mark;
mod inspect;
mod pool;
mod record;
mod route;
mod scan;
mod statement;
mod store;
mod waiters;

pub use config::RedisConfig;
pub use store::RedisStore;
