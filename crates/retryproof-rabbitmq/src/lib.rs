// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod answer;
mod config;
mod consumer;
mod error;
mod link;
mod message;
mod outbox;
mod server;
#[cfg(feature = "tls")]
mod tls;
mod topology;
mod window;

pub use config::ConsumerBuilder;
pub use consumer::{Consumer, Incoming, Stopper};
pub use message::Message;
pub use topology::Topology;

/// A consumer and all that it hands out cross threads.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Consumer<Vec<u8>>>();
    crosses_threads::<Incoming<Vec<u8>>>();
    crosses_threads::<Stopper>();
    crosses_threads::<Topology>();
};
