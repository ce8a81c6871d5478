// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTTP filter of retryproof.
#![allow(dead_code)]

mod digest;
mod key;

pub use digest::{FIRST_CUSTOM_ALGORITHM, FingerprintRequest, RequestParts};
