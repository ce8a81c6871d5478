// SPDX-License-Identifier: MIT OR Apache-2.0
//! The examples of the attribute's manual, whose crate cannot use the library.

mod endpoint;
mod function;
