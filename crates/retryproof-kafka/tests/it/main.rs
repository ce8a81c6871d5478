// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listener against librdkafka's own mock cluster: real clients and the real protocol, with the
//! brokers inside this process. It is not a Kafka server.

mod answers;
mod attempts;
mod dead_letters;
mod members;
mod refused;
mod stop;
mod support;
mod trouble;
mod unreadable;
