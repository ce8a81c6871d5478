// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

#[cfg(feature = "broker")]
pub mod broker;
pub mod conformance;
mod doom;
mod fault;
#[cfg(feature = "folder")]
pub mod folder;
mod forward;
mod keys;
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
pub use keys::TestKeys;
pub use ledger::Ledger;
pub use operation::Operation;
pub use record::{CallLog, Entry, Recorder, Said};
// The code that `forward!` generates names types of `retryproof_core`.
#[doc(hidden)]
pub use retryproof_core;
pub use runs_once::{Runs, count_runs};
pub use slow::SlowStore;
pub use subject::{StoreSetup, Subject, SubjectBuilder};
