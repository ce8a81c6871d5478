// SPDX-License-Identifier: MIT OR Apache-2.0
//! A payment service over gRPC. `Charge` is guarded: sent again under the same key, it charges once
//! and answers the same. `History` streams; what it answers is not kept.
//!
//! `proto` is what `tonic-prost-build` makes of a `.proto` file, written by hand, so that the
//! example needs no `protoc`.

pub mod client;
pub mod demo;
pub mod payments;
pub mod proto;
pub mod server;

/// Whatever ends a command.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
