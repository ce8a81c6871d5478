// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod answer;
mod config;
mod dead_letter;
mod delivery;
mod error;
mod handle;
mod headers;
mod listener;
mod receive;

/// The NATS client that this adapter uses.
pub use async_nats;
pub use config::NatsListenerBuilder;
pub use delivery::Delivery;
pub use listener::NatsListener;
