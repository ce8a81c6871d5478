// SPDX-License-Identifier: MIT OR Apache-2.0
//! Webhooks, received: each event is handled once, however often it is delivered.
//!
//! - [`signature`]: what proves that a delivery comes from its sender.
//! - [`verify`]: the layer outside the guard. It checks the signature over the raw body, and makes
//!   the event's id the key.
//! - [`inbox`]: the guarded handler, whose writes and record are one commit.
//! - [`sender`]: the other side, for trying it out and for the tests: it delivers until it is told
//!   that the event was taken.

pub mod inbox;
pub mod sender;
pub mod signature;
pub mod verify;
