// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listener against a real nats-server: its answers, and how it handles faults.

mod answers;
mod attempts;
mod dead_letters;
mod refused;
mod restart;
mod stop;
mod support;
mod trouble;
mod unreadable;
