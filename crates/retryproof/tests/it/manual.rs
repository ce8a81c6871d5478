// SPDX-License-Identifier: MIT OR Apache-2.0
//! The examples of the attribute's manual, whose own page cannot reach the library.

mod endpoint;
mod function;
