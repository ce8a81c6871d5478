// SPDX-License-Identifier: MIT OR Apache-2.0
//! The PostgreSQL store on a real server: the conformance kit, then what is particular to
//! PostgreSQL.

mod batch;
mod conformance;
mod diagnose;
mod join;
mod operate;
mod pooler;
mod round_trips;
mod schema;
mod stored_form;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod trouble;
mod waiting;
