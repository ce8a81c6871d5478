// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a store of `retryproof` is judged by (STO-2), and stores that fail on purpose.
//!
//! - [`conformance!`] makes one `#[test]` per case of the [conformance kit](conformance) out of a factory of stores.

pub mod conformance;
mod model;
mod random;
mod subject;

pub use subject::{Subject, SubjectBuilder};
