// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the filter's rules, HTTP-1 to HTTP-21 and ANN-6, and of the table of layers in the HTTP
//! guide.

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
mod joined;
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
