// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod config;
mod dead;
mod delivery;
mod group;
mod listener;
mod marks;
mod partition;

pub use config::KafkaListenerBuilder;
pub use delivery::Delivery;
pub use listener::KafkaListener;
/// The client that this adapter is made for.
pub use rdkafka;
