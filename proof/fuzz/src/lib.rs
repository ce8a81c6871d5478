// SPDX-License-Identifier: MIT OR Apache-2.0
//! Feeds random bytes to every parser of foreign input.
//!
//! A [`Target`] is a parser with properties that hold for any input: the parser never panics, each
//! value that it reads is within its bounds and is still the same after it is written and read
//! again, and no error shows a password. [`Fuzzer`] mutates the inputs of a committed corpus, and
//! runs a target on them; the same seed gives the same inputs. An input with a new kind of result
//! joins the corpus of the run.

// This crate has no unit tests of its own. The sources in `product` belong to other crates, which
// run the tests in them.
#![cfg(not(test))]

mod corpus;
mod error;
mod fuzzer;
#[allow(dead_code, unreachable_pub, reason = "a target uses only the parser of each source")]
mod product;
#[allow(dead_code, reason = "inputs need only some of the kinds of choices")]
#[path = "../../chaos/src/random.rs"]
mod random;
pub mod targets;

pub use fuzzer::{Found, Fuzzer, catch_panics};
pub use targets::{TARGETS, Target};
