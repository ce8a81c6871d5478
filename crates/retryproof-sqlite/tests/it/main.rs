// SPDX-License-Identifier: MIT OR Apache-2.0
//! The SQLite store: the conformance kit, then what is particular to a file.

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
