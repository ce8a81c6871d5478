// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `Idempotency-Key` protocol as pure functions: bytes and integers in, decisions out. Nothing
//! in this module depends on a web framework or runs the engine, so every adapter shares it.

pub(crate) mod decide;
pub(crate) mod fingerprint;
pub(crate) mod key;
pub(crate) mod problem;
pub(crate) mod stored;
