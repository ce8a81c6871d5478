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

#[cfg(test)]
mod tests {
    use super::*;
    use retryproof_core::store::{AcquireRequest, Grant};
    use retryproof_core::{FencingToken, Identity, OwnerId};

    #[test]
    fn run_1_leases_that_run_are_kept_while_expired_ones_are_removed() {
        let leases = Leases::default();
        let id = || Identity::of("leases", "k").unwrap();
        let granted = |lease: Duration| {
            let req = AcquireRequest::new(OwnerId::new(), lease, lease);
            let grant = Grant::new(FencingToken::new(1), lease, false);
            let transition = Transition::Acquire(id(), req);
            let result = Ok(TransitionResult::Acquired(Acquired::Granted(grant)));
            leases.note(std::iter::once((&transition, &result)));
        };
        let hour = Duration::from_secs(3_600);
        let nanos = |n: usize| Duration::from_nanos(n as u64 + 1);
        (0..MAX_DURATIONS).for_each(|n| granted(nanos(n)));
        granted(hour);
        (0..MAX_DURATIONS).for_each(|n| granted(nanos(n)));
        assert_eq!(leases.shortest(), Some(hour));
        assert!(leases.0.lock().len() <= MAX_DURATIONS + 1);
        (1..2 * MAX_DURATIONS).for_each(|n| granted(hour + nanos(n)));
        (0..MAX_DURATIONS).for_each(|n| granted(nanos(n)));
        assert_eq!(leases.shortest(), Some(hour), "leases that run are kept, however many");
        assert!(leases.0.lock().len() <= 2 * MAX_DURATIONS + 1, "expired ones are removed");
        let extend = Transition::Extend(id(), OwnerId::new(), hour / 2);
        let result = Ok(TransitionResult::Fenced(FencedWrite::Applied));
        leases.note(std::iter::once((&extend, &result)));
        assert_eq!(leases.shortest(), Some(hour / 2));
    }
}
