// SPDX-License-Identifier: MIT OR Apache-2.0
//! gRPC behind the guard, through tonic on both sides and real sockets (h2c), and the program
//! itself.

mod calls;
mod joined;
mod program;
mod refused;
mod streams;
mod world;
