// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
//! What a store of `retryproof` is judged by (STO-2), and stores that fail on purpose.
//!
//! For authors of stores: [`conformance!`] makes one `#[test]` per case of the [conformance
//! kit](mod@conformance) out of a factory of stores.
//!
//! For tests of what is built on a store, around any store and around each other:
//! - [`FaultStore`] refuses calls, loses answers, swallows calls, and has outages;
//! - [`SlowStore`] is some way off;
//! - [`Recorder`] keeps a log of calls and answers;
//! - `wire::WireProxy` (feature `wire`) counts the round trips to a server, and cuts or stalls the
//!   line;
//! - [`assert_runs_once!`] makes many calls at once and asserts that the action ran once;
//! - `folder::Folder` (feature `folder`) is a folder that goes with its test;
//! - `broker` (feature `broker`) is for tests of listeners on a message broker, and has brokers
//!   that may be killed.

#[cfg(feature = "broker")]
pub mod broker;
pub mod conformance;
mod doom;
mod fault;
#[cfg(feature = "folder")]
pub mod folder;
mod ledger;
mod model;
mod operation;
mod random;
mod record;
mod runs_once;
mod script;
mod slow;
mod subject;
mod values;
#[cfg(feature = "wire")]
pub mod wire;

pub use fault::{Call, Fault, FaultStore, Faults, Outage};
pub use ledger::Ledger;
pub use operation::Operation;
pub use record::{CallLog, Entry, Recorder, Said};
pub use runs_once::{Runs, count_runs};
pub use slow::SlowStore;
pub use subject::{Subject, SubjectBuilder};
