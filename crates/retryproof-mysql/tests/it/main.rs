// SPDX-License-Identifier: MIT OR Apache-2.0
//! The MySQL store on a real MariaDB: the conformance kit, and behaviour that the kit does not
//! test.

mod conflicts;
mod conformance;
mod diagnose;
mod failover;
mod join;
mod operate;
mod round_trips;
mod schema;
mod stored_form;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod trouble;
mod waiting;
