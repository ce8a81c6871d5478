// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
//! The conformance tests for stores of `retryproof` (STO-2), and stores that fail on purpose.
//!
//! For store authors: [`conformance!`] creates one `#[test]` per case of the [conformance
//! kit](mod@conformance) from a factory of stores.
//!
//! For tests of code that uses a store (the wrappers work around any store, and can be nested):
//! - [`FaultStore`] refuses calls, loses answers, swallows calls, and has outages;
//! - [`SlowStore`] delays calls and answers;
//! - [`Recorder`] keeps a log of calls and answers;
//! - `wire::WireProxy` (feature `wire`) counts the round trips to a server, and cuts or stalls
//!   connections;
//! - [`assert_runs_once!`] makes many concurrent calls and asserts that the action ran once;
//! - `folder::Folder` (feature `folder`) is a temporary folder that is deleted after its test;
//! - `broker` (feature `broker`) helps to test listeners on a message broker, and starts brokers
//!   that a test may kill.

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
