// SPDX-License-Identifier: MIT OR Apache-2.0
//! A payment service over gRPC. `Charge` is guarded: a retry with the same key gets the same answer
//! and makes no second charge. `History` answers with a stream, which is not stored.
//!
//! `proto` contains the code that `tonic-prost-build` would generate from a `.proto` file. The code
//! is written by hand, so the example does not need `protoc`.

pub mod client;
pub mod demo;
pub mod payments;
pub mod proto;
pub mod server;

/// The error of a command.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
