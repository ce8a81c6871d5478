// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs on apalis workers: redelivered, repeated, refused, and worked on by a process that is
//! killed.

mod program;
mod worker;
