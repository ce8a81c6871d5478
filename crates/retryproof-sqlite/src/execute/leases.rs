// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Leases`]: the durations of the leases that this process holds in a file. The store ends a
//! joined transaction before the shortest of these leases could be lost (CMP-7, RUN-1).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use retryproof_core::Result;
use retryproof_core::store::{Acquired, FencedWrite};

use super::transition::{Transition, TransitionResult};
use crate::connection::retry::now;

/// If the map contains more durations than this, the expired ones are removed.
const MAX_DURATIONS: usize = 64;

/// Maps each duration to the time at which the last lease of that duration expires. A lease that
/// ended early still counts until that time, so a transaction can get a shorter limit than
/// necessary.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<BTreeMap<Duration, Instant>>);

impl Leases {
    /// Records the leases that a commit granted or extended. Call this before the write lock is
    /// released.
    pub(crate) fn note<'t>(
        &self,
        committed: impl Iterator<Item = (&'t Transition, &'t Result<TransitionResult>)>,
    ) {
        let mut locked = None;
        for (transition, result) in committed {
            let lease = match (transition, result) {
                (
                    Transition::Acquire(_, req),
                    Ok(TransitionResult::Acquired(Acquired::Granted(_))),
                ) => req.lease,
                (
                    Transition::Extend(_, _, lease),
                    Ok(TransitionResult::Fenced(FencedWrite::Applied)),
                ) => *lease,
                _ => continue,
            };
            let (now, expiry) = locked.get_or_insert_with(|| (now(), self.0.lock()));
            if let Some(until) = now.checked_add(lease) {
                expiry.insert(lease, until);
            }
            if expiry.len() > MAX_DURATIONS {
                expiry.retain(|_, until| *until > *now);
            }
        }
    }

    /// Returns the duration of the shortest lease that may still be held; `None` if there is no
    /// such lease.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        let now = now();
        let expiry = self.0.lock();
        expiry.iter().find(|(_, until)| **until > now).map(|(lease, _)| *lease)
    }
}
