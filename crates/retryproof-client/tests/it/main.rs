// SPDX-License-Identifier: MIT OR Apache-2.0
//! The middleware as a whole, on tokio's paused clock: behind it stands a server that is a list of
//! replies. In `wire`, over sockets.

mod answers;
mod keys;
mod pauses;
mod server;
mod wire;
mod words;
