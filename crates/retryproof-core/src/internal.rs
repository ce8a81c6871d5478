// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small parts of this crate that other crates of the workspace use too. These parts are not a
//! public API. Those crates pin the exact version, and anything here may change in any release.

pub use crate::engine::poll_inside;
pub use crate::panics::{Panic, catch_panic, catch_panic_of};
