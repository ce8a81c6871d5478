// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod broker;
mod config;
mod dead;
mod delivery;
mod listener;
mod pull;
mod serve;

/// The client that this adapter is made for.
pub use async_nats;
pub use config::NatsListenerBuilder;
pub use delivery::Delivery;
pub use listener::NatsListener;
