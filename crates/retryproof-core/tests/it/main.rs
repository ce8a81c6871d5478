// SPDX-License-Identifier: MIT OR Apache-2.0
//! Integration tests of the core.

mod engine;
