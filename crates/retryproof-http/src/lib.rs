// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTTP filter of retryproof.
#![allow(dead_code)]

mod digest;
mod key;
mod stored;

pub use digest::{FIRST_CUSTOM_ALGORITHM, FingerprintRequest, RequestParts};
pub use stored::{Corrupt, StoredResponse};
