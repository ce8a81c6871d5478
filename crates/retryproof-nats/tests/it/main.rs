// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listener against a real nats-server: its answers, and how it handles faults.

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
