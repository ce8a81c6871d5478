// SPDX-License-Identifier: MIT OR Apache-2.0
#![doc = include_str!("../README.md")]

mod broker;
mod config;
mod dead;
mod delivery;
mod listener;
mod pull;
mod serve;

pub use config::NatsListenerBuilder;
pub use delivery::Delivery;
pub use listener::NatsListener;
