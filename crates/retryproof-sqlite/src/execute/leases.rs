// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Leases`]: how short the leases are that this process holds in a file, so that a joined
//! transaction can end before it costs one of them (CMP-7, RUN-1).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use retryproof_core::Result;
use retryproof_core::store::{Acquired, FencedWrite};

use crate::connection::retry::now;
use crate::execute::transition::{Answer, Step};

/// How many lengths are kept before those that are over are dropped.
const MANY: usize = 64;

/// For each length, when the last lease of that length that was granted or extended runs out. One
/// that has ended early counts until then: a transaction that is bounded for nothing is no harm.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<BTreeMap<Duration, Instant>>);

impl Leases {
    /// What a commit granted and extended. To be told before anyone else can write to the file.
    pub(crate) fn note<'s>(&self, done: impl Iterator<Item = (&'s Step, &'s Result<Answer>)>) {
        let mut kept = None;
        for (step, answer) in done {
            let lease = match (step, answer) {
                (Step::Acquire(_, req), Ok(Answer::Acquired(Acquired::Granted(_)))) => req.lease,
                (Step::Extend(_, _, lease), Ok(Answer::Fenced(FencedWrite::Applied))) => *lease,
                _ => continue,
            };
            let (now, kept) = kept.get_or_insert_with(|| (now(), self.0.lock()));
            if let Some(until) = now.checked_add(lease) {
                kept.insert(lease, until);
            }
            if kept.len() > MANY {
                kept.retain(|_, until| *until > *now);
            }
        }
    }

    /// The shortest that may still be held.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        let now = now();
        let kept = self.0.lock();
        kept.iter().find(|(_, until)| **until > now).map(|(lease, _)| *lease)
    }
}
