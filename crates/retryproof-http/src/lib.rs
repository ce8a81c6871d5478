// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTTP filter of retryproof.
#![allow(dead_code)]

mod body;
mod decide;
mod digest;
mod fate;
mod headers;
mod key;
mod policy;
mod problem;
mod scope;
mod stored;

pub use body::{FromReplay, GuardedBody, ReplayBody};
pub use digest::{FIRST_CUSTOM_ALGORITHM, FingerprintRequest, RequestParts};
pub use fate::AnswerFate::{self, Hold, Release};
pub use fate::Fate;
pub use policy::Policy;
pub use problem::{Code, Problem};
pub use stored::{Corrupt, StoredResponse};
