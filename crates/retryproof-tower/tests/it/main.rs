// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer on the memory store: one run per key, refusals by type, readiness, and futures that
//! are dropped.

mod dropped;
mod once;
mod readiness;
mod refused;
mod world;
