// SPDX-License-Identifier: MIT OR Apache-2.0
//! End-to-end tests: the lab as a separate process, over real sockets, with HTTP/1.1 and h2c.

mod answers;
mod bad_input;
mod caller;
mod client;
mod disconnect;
mod duplicates;
mod front;
mod hostile;
mod outage;
mod place;
mod processes;
mod refused;
mod server;
mod suites;
