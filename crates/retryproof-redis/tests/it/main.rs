// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Redis store: the conformance kit, then what is particular to a server, a Sentinel group and
//! their failures.

mod broken;
mod conformance;
mod failover;
mod far;
mod processes;
mod refused;
mod sentinels;
mod server;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod trips;
mod trouble;
mod wait;
