// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listener on a real broker: every row of LST-2, every kind of bad input, and a broker that
//! becomes unavailable and returns.

mod answers;
mod attempts;
mod dead_letters;
mod refused;
mod restart;
mod stop;
mod support;
mod tls;
mod too_large;
mod trouble;
mod unreadable;
