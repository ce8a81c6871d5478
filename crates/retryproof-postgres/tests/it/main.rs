// SPDX-License-Identifier: MIT OR Apache-2.0
//! The PostgreSQL store on a real server: the conformance kit, then what is particular to PostgreSQL.

mod conformance;
mod support;
