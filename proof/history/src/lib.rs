// SPDX-License-Identifier: MIT OR Apache-2.0
//! Judges what happened in a kill test.
//!
//! Worker processes write one line per [`Event`] ([`Journal`]), whatever becomes of them. [`read`]
//! takes a folder of such files, [`Run`] sorts them into one [`Story`] per identity, and [`judge`]
//! holds each story against the invariants S1 to S19 and L1 to L5, every one a function of its own
//! name under [`rules`]. [`Counts`] says whether enough happened at all: a run that was too quiet
//! is void, not green.
//!
//! A store does not tell its clock to its callers, and no client needs it (ACQ-7). So time is
//! judged from outside: a call acts somewhere between the instant it was sent and the instant it
//! was answered, both on the machine's monotonic clock, which all processes share. A lease granted
//! within `[i, a]` ends within `[i + lease, a + lease]`; a takeover answered before the first of
//! the two is early, whatever the store believes. What lies in between is given the benefit of the
//! doubt.
//!
//! A call without an answer (its process was killed, its connection cut) is *info*: it may have
//! taken effect once, at any time after it was sent, or never.

mod count;
mod event;
mod journal;
mod judge;
mod read;
mod report;
pub mod rules;
mod story;
mod when;

pub use count::{Count, Counts};
pub use event::{Event, Fun, Manifest, Phase, Said};
pub use journal::{Journal, hash};
pub use judge::{Judgement, Violation, judge};
pub use read::{Lines, ReadError, read};
pub use report::report;
pub use story::{Act, Actor, Call, Completed, Fault, Line, Moment, Op, Run, Story, Tenure};
pub use when::{LONGEST_POLL_NS, MS, slop};
