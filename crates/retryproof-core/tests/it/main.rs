// SPDX-License-Identifier: MIT OR Apache-2.0
//! Integration tests of the core.

mod annotated;
mod awkward;
mod beats;
#[cfg(feature = "blocking")]
mod blocking;
mod clock;
#[cfg(feature = "config")]
mod config;
#[cfg(feature = "config")]
mod config_process;
mod durations;
mod eager;
mod early_mismatch;
mod engine;
mod events;
mod faults;
#[cfg(unix)]
mod fork;
mod hashed;
mod hold;
mod holder;
mod joined;
mod lease_time;
mod nested;
mod observe;
mod outcomes;
mod purge_warnings;
mod redaction;
mod runtimes;
mod sealed;
mod shadow;
mod spans;
mod switched_off;
mod toy;
mod waiters;
