// SPDX-License-Identifier: MIT OR Apache-2.0
//! The PostgreSQL store on a real server: the conformance kit, and behaviour that the kit does not
//! test.

mod batch;
mod conformance;
mod diagnose;
mod hosts;
mod join;
#[cfg(feature = "seal")]
mod keys;
mod operate;
mod plain;
mod pooler;
mod round_trips;
mod schema;
mod stored_form;
mod support;
/// Checks the promises that every table of keys keeps. The tests of `retryproof-seal` use the same
/// file.
#[cfg(feature = "seal")]
#[path = "../../../retryproof-seal/tests/it/table.rs"]
mod table;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod trouble;
mod waiting;

#[cfg(feature = "seal")]
use keys::secret;
