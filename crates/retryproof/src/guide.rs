// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manual, in documentation builds only. The examples are compiled, and those that terminate
//! are also run.
//!
//! - [`getting_started`]: from nothing to a guarded endpoint.
//! - [`http`]: keys, replays, problems, what is stored, the order of layers.
//! - [`functions_and_listeners`]: `#[idempotent(key = ..)]`, redelivered messages, the blocking
//!   form.
//! - [`client`]: the client side, and how a handler protects the services it calls.
//! - [`webhooks`]: check the signature before the guard, and use the event's id as the key.
//! - [`listeners`]: consumers of message brokers, and how each message is acknowledged.
//! - [`guarantees`]: what happens in every failure, and how to protect effects elsewhere.
//! - [`writing_a_store`]: the contract, and the kit that tests it.
//! - [`operating`]: the command line: look at records, change them, and run any command once per
//!   key.
//! - [`operations`]: settings, what to monitor, and what to do about each message.

// Each page also defines its own links, but the first definition of a link wins, so the links lead
// to modules in this documentation and to files in the repository.

#[doc = include_str!("guide/client.md")]
pub mod client {}
#[doc = include_str!("guide/functions-and-listeners.md")]
pub mod functions_and_listeners {}
#[doc = "[front]: crate\n[caller]: crate::guide::http#who-is-the-caller\n"]
#[doc = include_str!("guide/getting-started.md")]
pub mod getting_started {}
#[doc = include_str!("guide/guarantees.md")]
#[doc = ""]
#[doc = include_str!("guide/timeline.svg")]
pub mod guarantees {}
#[doc = "[answers]: crate::guide::operations#answers-of-the-filter\n"]
#[doc = include_str!("guide/http.md")]
pub mod http {}
#[doc = include_str!("guide/listeners.md")]
pub mod listeners {}
#[doc = include_str!("guide/operating.md")]
pub mod operating {}
#[doc = "[failures]: crate::guide::guarantees#what-happens-when\n"]
#[doc = include_str!("guide/operations.md")]
pub mod operations {}
#[doc = include_str!("guide/webhooks.md")]
pub mod webhooks {}
#[doc = include_str!("guide/writing-a-store.md")]
pub mod writing_a_store {}
