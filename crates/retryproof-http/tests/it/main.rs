// SPDX-License-Identifier: MIT OR Apache-2.0
//! The filter against its rules: HTTP-1 to HTTP-21, ANN-6, and the rows of the design's tables.

mod request;
mod socket;
mod world;

mod callers;
mod endpoint;
mod failure;
mod fate;
mod faulty;
mod first_steps;
mod flight;
#[cfg(feature = "grpc")]
mod grpc;
mod hook;
mod json;
mod layers;
mod limit;
mod logs;
mod methods;
mod nested;
mod replay;
mod sealed;
mod served;
mod spans;
mod stream;
mod switches;
mod waiting;
