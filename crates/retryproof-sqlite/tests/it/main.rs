// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the SQLite store: the conformance kit, then the behaviour that is specific to a file.

mod commits;
mod conformance;
mod join;
mod operate;
mod schema;
mod stored_form;
mod support;
mod tokens;
mod trouble;
mod waiting;
