// SPDX-License-Identifier: MIT OR Apache-2.0
//! The MySQL store on a real MariaDB: the conformance kit, then what is particular to a server.

mod conformance;
mod schema;
mod support;
mod wire;
