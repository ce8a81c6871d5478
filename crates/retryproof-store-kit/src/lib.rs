// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod coarse_timeout;
mod completed_hint;

pub use coarse_timeout::CoarseTimeout;
pub use completed_hint::CompletedHint;
