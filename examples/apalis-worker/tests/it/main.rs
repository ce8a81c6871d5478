// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs on apalis workers: redelivered, repeated, refused, and processed by a worker that is
//! killed.

mod program;
mod worker;
