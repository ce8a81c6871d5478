// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `Idempotency-Key` protocol as pure functions, which turn bytes and integers into decisions.
//! All adapters share this module, because nothing in it depends on a web framework or runs the
//! engine.

pub(crate) mod decide;
pub(crate) mod fingerprint;
pub(crate) mod key;
pub(crate) mod problem;
pub(crate) mod stored;
