// SPDX-License-Identifier: MIT OR Apache-2.0
//! The consumer on a real broker: every row of LST-2, every kind of bad input, and a broker that goes
//! away and returns.

mod broker_away;
mod in_flight;
mod poison;
mod redelivery;
mod restart;
mod setup;
mod support;
mod tls;
mod unreadable;
