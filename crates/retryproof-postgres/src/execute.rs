// SPDX-License-Identifier: MIT OR Apache-2.0
//! How one operation runs: completions that share a commit, and the bound on acquires of one
//! record.

pub(crate) mod batch;
pub(crate) mod record_limit;
