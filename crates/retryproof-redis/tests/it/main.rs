// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Redis store: the conformance kit, and behaviour that the kit does not test.

mod cluster;
mod conformance;
mod diagnose;
mod memory;
mod operate;
mod replicas;
mod round_trips;
mod sentinel;
mod stored_form;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod trouble;
mod waiting;
