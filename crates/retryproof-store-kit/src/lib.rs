// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod audit;
mod coarse_timeout;
mod completed_hint;
mod diagnose;
mod errors;
mod page;
mod priority;
mod record;
mod schema;
mod wait;
mod waiters;

pub use audit::{AuditRows, audit_columns, audit_entry, audit_refused, warn_no_audit_table};
pub use coarse_timeout::CoarseTimeout;
pub use completed_hint::CompletedHint;
pub use diagnose::{clock_skew, lacks_privileges, other_identities, unpurged};
pub use errors::{changed_meanwhile, too_large, unreadable, while_running};
pub use page::ScanRows;
pub use priority::CallPriority;
pub use record::{Record, RecordPhase, time_left, time_since_end};
pub use schema::{MetaRows, Schema, TableVersions, table_name};
pub use wait::{jitter, max_pause, wait_end, wait_for_change};
pub use waiters::{Subscription, WaiterRegistry};
