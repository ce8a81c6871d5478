// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the adapter's promises in process. The suite of the lab (`examples/lab`) tests them over
//! sockets.

mod alike;
mod callers;
mod endpoint;
mod forged;
mod logs;
mod methods;
mod middleware;
mod served;
mod stream;
mod world;
