// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RecordLimits`] limits the connections that the acquires of one record can use, and the
//! connections that the acquires of all locked records can use together.
//!
//! If an open transaction has locked a record's row, an acquire of that record waits in the server
//! until its lock timeout. During this wait, the acquire occupies a connection. Without a limit,
//! the callers of one such record would occupy every connection of the store, and all other callers
//! would queue behind them. Therefore, the acquires of one record use at most half of the
//! connections. If a record was found locked a moment ago, its acquires use only one connection at
//! a time. The acquires of all such records together use at most a quarter of the connections.
//! Further acquires wait without a connection.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::OwnerId;
use retryproof_core::store::LiveLease;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use crate::waiters::recent::RecentHashes;

/// A record that was found locked counts as locked for `LOCKED_FOR`, unless an acquire is answered
/// earlier. At most `MAX_LOCKED` locked records are remembered.
const LOCKED_FOR: Duration = Duration::from_secs(2);
const MAX_LOCKED: usize = 4_096;

pub(crate) struct RecordLimits {
    /// How many acquires of one record can run at the same time.
    per_record: usize,
    /// How many acquires of locked records can run at the same time.
    of_locked: usize,
    state: Mutex<LimitState>,
}

struct LimitState {
    records: HashMap<u64, RecordCallers>,
    locked: RecentHashes,
    /// How many acquires of locked records are running.
    probing: usize,
}

#[derive(Default)]
struct RecordCallers {
    running: usize,
    queued: usize,
    changed: Arc<Notify>,
    /// The last read that found the record locked.
    found_locked: Option<LockedRead>,
}

/// A read that found a record locked: when the read started, and the lease that it returned.
struct LockedRead {
    began: Instant,
    owner: OwnerId,
    lease: LiveLease,
}

/// Whether an acquire may be sent.
pub(crate) enum LimitDecision<'a> {
    Admitted(AcquirePermit<'a>),
    Queued(QueuedAcquire<'a>),
}

/// A permit to send one acquire. Dropping the permit frees it for the next acquire.
pub(crate) struct AcquirePermit<'a> {
    limits: &'a RecordLimits,
    hash: u64,
    /// Whether the record was found locked a moment ago.
    pub(crate) is_probe: bool,
}

/// An acquire that waits for a permit. Dropping the value ends the wait.
pub(crate) struct QueuedAcquire<'a> {
    limits: &'a RecordLimits,
    hash: u64,
    /// Notified when a permit may be free, or when a read has found the record locked.
    pub(crate) changed: Pin<Box<OwnedNotified>>,
}

impl RecordLimits {
    /// Creates the limits for a store that has `connections` connections for normal calls.
    pub(crate) fn new(connections: usize) -> Self {
        let locked = RecentHashes::new(LOCKED_FOR, MAX_LOCKED);
        Self {
            per_record: (connections / 2).max(1),
            of_locked: (connections / 4).max(1),
            state: Mutex::new(LimitState { records: HashMap::new(), locked, probing: 0 }),
        }
    }

    pub(crate) fn enter(&self, hash: u64) -> LimitDecision<'_> {
        let state = &mut *self.state.lock();
        let is_probe = state.locked.has(hash, Instant::now());
        let callers = state.records.entry(hash).or_default();
        let is_free = if is_probe {
            callers.running == 0 && state.probing < self.of_locked
        } else {
            callers.running < self.per_record
        };
        if is_free {
            callers.running += 1;
            state.probing += usize::from(is_probe);
            return LimitDecision::Admitted(AcquirePermit { limits: self, hash, is_probe });
        }
        callers.queued += 1;
        let changed = Box::pin(Arc::clone(&callers.changed).notified_owned());
        LimitDecision::Queued(QueuedAcquire { limits: self, hash, changed })
    }

    /// Whether the record was found locked a moment ago.
    pub(crate) fn is_locked(&self, hash: u64) -> bool {
        self.state.lock().locked.has(hash, Instant::now())
    }

    /// Wakes a record's queued acquires after a read has found the record locked. The read started
    /// at `began`, and returned the `lease` of `owner`.
    pub(crate) fn publish_locked(
        &self,
        hash: u64,
        began: Instant,
        owner: OwnerId,
        lease: LiveLease,
    ) {
        if let Some(callers) = self.state.lock().records.get_mut(&hash) {
            callers.found_locked = Some(LockedRead { began, owner, lease });
            callers.changed.notify_waiters();
        }
    }
}

impl LimitState {
    fn leave(&mut self, hash: u64, change: impl FnOnce(&mut RecordCallers)) {
        if let Some(callers) = self.records.get_mut(&hash) {
            change(callers);
            if callers.running + callers.queued == 0 {
                self.records.remove(&hash);
            }
        }
    }
}

impl AcquirePermit<'_> {
    /// Notes that the acquire ran into the lock of an open transaction.
    pub(crate) fn found_locked(self) {
        self.limits.state.lock().locked.note(self.hash, Instant::now());
    }

    /// Notes that the acquire was answered, which shows that the record is not locked.
    pub(crate) fn answered(self) {
        if self.is_probe {
            self.limits.state.lock().locked.forget(self.hash, Instant::now());
        }
    }
}

impl QueuedAcquire<'_> {
    /// Returns the holder's lease if a read that began at `since` or later found the record locked.
    /// Returns `None` if `caller` is the holder itself, which does not wait for its own lease
    /// (ACQ-9).
    pub(crate) fn locked_since(&self, since: Instant, caller: OwnerId) -> Option<LiveLease> {
        let state = self.limits.state.lock();
        let read = state.records.get(&self.hash)?.found_locked.as_ref()?;
        (read.began >= since && read.owner != caller).then(|| read.lease.clone())
    }
}

impl Drop for AcquirePermit<'_> {
    fn drop(&mut self) {
        let mut state = self.limits.state.lock();
        state.probing -= usize::from(self.is_probe);
        state.leave(self.hash, |callers| {
            callers.running -= 1;
            if callers.queued > 0 {
                callers.changed.notify_one();
            }
        });
    }
}

impl Drop for QueuedAcquire<'_> {
    fn drop(&mut self) {
        self.limits.state.lock().leave(self.hash, |callers| callers.queued -= 1);
    }
}

#[cfg(test)]
mod tests {
    use retryproof_core::FencingToken;

    use super::*;

    fn admitted(limits: &RecordLimits, hash: u64) -> AcquirePermit<'_> {
        match limits.enter(hash) {
            LimitDecision::Admitted(permit) => permit,
            LimitDecision::Queued(_) => panic!("the acquire should be admitted"),
        }
    }

    fn queued(limits: &RecordLimits, hash: u64) -> QueuedAcquire<'_> {
        match limits.enter(hash) {
            LimitDecision::Queued(queued) => queued,
            LimitDecision::Admitted(_) => panic!("the acquire should be queued"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cmp_7_the_callers_of_locked_records_have_a_part_of_the_connections() {
        let limits = RecordLimits::new(8);
        let all: Vec<_> = (0..4).map(|_| admitted(&limits, 1)).collect();
        let waiting = queued(&limits, 1);
        // Acquires of other records still get permits. Each permit that is dropped admits one
        // queued acquire.
        drop(admitted(&limits, 2));
        let mut all = all.into_iter();
        all.next().expect("four permits should be left").answered();
        let mut waiting = waiting;
        waiting.changed.as_mut().await;
        drop(waiting);
        all.next().expect("three permits should be left").found_locked();
        assert!(limits.is_locked(1));
        drop(all);
        // A locked record gets one permit at a time. All locked records together get two.
        let probe = admitted(&limits, 1);
        let since = Instant::now();
        let mut waiting = queued(&limits, 1);
        let (holder, caller) = (OwnerId::new(), OwnerId::new());
        let token_since = |waiting: &QueuedAcquire<'_>, since| {
            waiting.locked_since(since, caller).map(|lease| lease.token)
        };
        assert_eq!(token_since(&waiting, since), None);
        let token = FencingToken::new(7);
        limits.publish_locked(1, since, holder, LiveLease::new(Duration::ZERO, token));
        waiting.changed.as_mut().await;
        assert_eq!(token_since(&waiting, since), Some(token));
        assert_eq!(token_since(&waiting, since + LOCKED_FOR), None, "an older read");
        assert!(waiting.locked_since(since, holder).is_none(), "the holder's own lease");
        drop(waiting);
        admitted(&limits, 2).found_locked();
        admitted(&limits, 3).found_locked();
        let second = admitted(&limits, 2);
        drop(queued(&limits, 3));
        drop(admitted(&limits, 4));
        probe.answered();
        drop(second);
        assert!(!limits.is_locked(1) && limits.is_locked(2));
        drop((admitted(&limits, 1), admitted(&limits, 1)));
        tokio::time::advance(LOCKED_FOR * 2).await;
        assert!(!limits.is_locked(2));
        assert!(limits.state.lock().records.is_empty() && limits.state.lock().probing == 0);
    }
}
