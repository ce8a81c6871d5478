// SPDX-License-Identifier: MIT OR Apache-2.0
//! Judges what happened in a kill test.
//!
//! Worker processes write one line per [`Event`] ([`Journal`]), even if they are killed afterwards.
//! [`read`] takes a folder of such files, [`Run`] sorts them into one [`Story`] per identity, and
//! [`judge`] checks each story against the invariants S1 to S19 and L1 to L5. Each invariant is a
//! function of that name under [`rules`]. [`Counts`] shows whether a run had enough calls, faults
//! and races: a run with too few is void, not green.
//!
//! A store does not report its clock to its callers, and no client needs it (ACQ-7). Therefore time
//! is judged from outside: a call takes effect at some instant between its sending and its answer,
//! both on the machine's monotonic clock, which all processes share. A lease granted within `[i,
//! a]` ends within `[i + lease, a + lease]`; a takeover that was answered before `i + lease` is
//! early, whatever the store's clock says. A takeover that was answered later is allowed.
//!
//! A call without an answer (because its process was killed or its connection was cut) is *info*:
//! it may have taken effect once, at any time after it was sent, or never.

mod count;
mod event;
mod excuse;
mod journal;
mod judge;
mod pause;
mod read;
mod report;
pub mod rules;
mod story;
mod when;

pub use count::{Count, Counts};
pub use event::{AT_ONCE, CLOCK_MOVED, Event, Fun, IN_PLACE, LOSS, Manifest, Phase, Said};
pub use excuse::{EXCUSES, Excuse, Excused, Row, Share};
pub use journal::{Journal, hash};
pub use judge::{Judgement, Violation, judge};
pub use read::{Lines, ReadError, read};
pub use report::report;
pub use story::{
    Act, Actor, Call, Completed, Fault, Line, Moment, Op, Run, SlotMove, StoreClock, Story, Tenure,
};
pub use when::{LONGEST_POLL_NS, MS, slop};
