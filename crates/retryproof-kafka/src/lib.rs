// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod answer;
mod config;
mod dead_letter;
mod delivery;
mod error;
mod handle;
mod listener;
mod receive;

pub use config::KafkaListenerBuilder;
pub use delivery::Delivery;
pub use listener::KafkaListener;
/// The Kafka client that this adapter uses.
pub use rdkafka;
