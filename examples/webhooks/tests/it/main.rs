// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliveries over a socket, from a sender that repeats them until they are accepted.

mod deliveries;
mod distrust;
mod program;
mod world;
