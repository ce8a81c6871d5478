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

pub use config::ConsumerBuilder;
pub use delivery::{Incoming, Message};
pub use listener::{Consumer, Stopper};
pub use topology::Topology;

/// The public types can be shared between threads.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Consumer<Vec<u8>>>();
    crosses_threads::<Incoming<Vec<u8>>>();
    crosses_threads::<Stopper>();
    crosses_threads::<Topology>();
};
