// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives webhooks. Each event is handled once, however often it is delivered.
//!
//! - [`signature`]: the proof that a delivery comes from its sender.
//! - [`verify`]: the layer outside the guard. It checks the signature of the raw body, and uses the
//!   event's id as the key.
//! - [`inbox`]: the guarded handler. Its writes and its record commit together.
//! - [`sender`]: a sender for experiments and tests, which repeats a delivery until the receiver
//!   accepts the event.

pub mod inbox;
pub mod sender;
pub mod signature;
pub mod verify;
