// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod answer;
mod config;
mod delivery;
mod error;
mod listener;
mod receive;
mod topology;

pub use config::ConsumerBuilder;
pub use delivery::Message;
pub use listener::{Consumer, Incoming, Stopper};
pub use topology::Topology;

/// A consumer and all that it hands out cross threads.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Consumer<Vec<u8>>>();
    crosses_threads::<Incoming<Vec<u8>>>();
    crosses_threads::<Stopper>();
    crosses_threads::<Topology>();
};
