// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole middleware, on tokio's paused clock, in front of a server that answers from a list of
//! replies. The tests in `wire` use sockets.

mod answers;
mod keys;
mod pauses;
mod server;
mod wire;
mod words;
