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
mod topology;

pub use config::RabbitmqListenerBuilder;
pub use delivery::{Delivery, Message};
pub use listener::RabbitmqListener;
pub use topology::Topology;

/// Checks at compile time that the public types can be shared between threads.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<RabbitmqListener>();
    crosses_threads::<Delivery>();
    crosses_threads::<Topology>();
};
