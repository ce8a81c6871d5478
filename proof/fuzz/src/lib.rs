// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random bytes for everything that parses foreign bytes.
//!
//! A [`Target`] is a parser with the properties that it has to keep for any input: it never
//! panics, what it reads is within its bounds, what it read and wrote again reads the same, and no
//! error shows a password. [`Fuzzer`] runs a target on inputs that it makes from a committed
//! corpus, by mutations that a seed repeats. An input whose result is of a new kind joins the
//! corpus of the run.

// The sources of other crates bring their own tests, which run there.
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
