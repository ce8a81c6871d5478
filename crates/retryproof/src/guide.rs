// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manual, which exists only in documentation builds. The examples are compiled, and examples
//! that terminate are also run.
//!
//! - [`getting_started`]: how to guard a first endpoint.
//! - [`http`]: keys, replays, problem responses, what is stored, and the order of layers.
//! - [`functions_and_listeners`]: `#[idempotent(key = ..)]`, redelivered messages, and the blocking
//!   API.
//! - [`client`]: the client side, and how a handler protects the services that it calls.
//! - [`webhooks`]: check the signature before the guard, and use the event's id as the key.
//! - [`listeners`]: consumers of message brokers, and how each message is acknowledged.
//! - [`guarantees`]: what happens after each kind of failure, and how to protect effects in other
//!   systems.
//! - [`writing_a_store`]: the contract, and the kit that tests a store against it.
//! - [`operating`]: how to look at records and change them on the command line, and run any command
//!   once per key.
//! - [`operations`]: settings, what to monitor, and what to do about each log message.

// Each page defines its own links, for readers of the repository. If a `doc` attribute before the
// page defines the same link, that definition comes first and wins, so the link leads to this
// documentation.

#[doc = include_str!("guide/client.md")]
pub mod client {}
#[doc = include_str!("guide/functions-and-listeners.md")]
pub mod functions_and_listeners {}
#[doc = "[front]: crate\n[caller]: crate::guide::http#who-is-the-caller\n"]
#[doc = "[settings]: crate::guide::operations#settings\n"]
#[doc = "[survives]: crate::guide::guarantees#what-a-store-survives\n"]
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
#[doc = "[failover]: crate::guide::guarantees#failovers\n"]
#[doc = "[stores]: crate::guide::getting_started#choose-a-store\n"]
#[doc = include_str!("guide/operations.md")]
pub mod operations {}
#[doc = include_str!("guide/webhooks.md")]
pub mod webhooks {}
#[doc = include_str!("guide/writing-a-store.md")]
pub mod writing_a_store {}
