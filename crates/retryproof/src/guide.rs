// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manual, in documentation builds only. Its examples are compiled, and run where they end.
//!
//! - [`getting_started`]: from nothing to a guarded endpoint.
//! - [`http`]: keys, replays, problems, the fate of an answer, the order of layers.
//! - [`functions_and_listeners`]: `#[idempotent(key = ..)]`, redelivered messages, the blocking
//!   form.
//! - [`client`]: the caller's half, and how a handler passes its protection on.
//! - [`webhooks`]: signatures before the guard, the event's id as key.
//! - [`listeners`]: consumers of message brokers, and what the broker is told.
//! - [`guarantees`]: what happens in every failure, and what helps beyond it.
//! - [`writing_a_store`]: the contract and the kit that judges it.
//! - [`operations`]: settings, what to watch, and each message at three in the morning.

// Links between the pages are defined before each of them too, and the first definition counts:
// they lead to modules here, and to files where the files are read.

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
#[doc = "[failures]: crate::guide::guarantees#what-happens-when\n"]
#[doc = include_str!("guide/operations.md")]
pub mod operations {}
#[doc = include_str!("guide/webhooks.md")]
pub mod webhooks {}
#[doc = include_str!("guide/writing-a-store.md")]
pub mod writing_a_store {}
