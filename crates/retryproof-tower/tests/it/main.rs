// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer over the memory store: once per key, refusals by type, readiness, and futures that are
//! dropped.

mod dropped;
mod once;
mod readiness;
mod refused;
mod world;
