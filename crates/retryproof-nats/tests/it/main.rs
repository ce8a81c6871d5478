// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listener against a real nats-server: what it is told of each message, and what comes of
//! trouble.

mod answers;
mod bad_headers;
mod batches;
mod dead_letters;
mod limits;
mod refused;
mod restart;
mod stop;
mod support;
mod trouble;
