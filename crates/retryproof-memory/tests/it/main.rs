// SPDX-License-Identifier: MIT OR Apache-2.0
//! Integration tests of the memory store.
#![cfg(not(loom))]

mod conformance;
mod shared;
