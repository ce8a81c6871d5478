// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SharedWaits`]: the waiters of one identity in an engine share one wait on the store (ACQ-5,
//! ACQ-13).
//!
//! The waiter that holds a fair mutex is the leader. The leader calls the store until its wait ends
//! or is dropped. Then the next waiter becomes the leader. A leader publishes its result, and the
//! other waiters read the result when they get the mutex.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::clock::Instant;
use crate::identity::Identity;
use crate::lock::Mutex;
use crate::owner::FencingToken;
use crate::payload::StoredResult;

/// The maximum number of waiters for one identity in an engine (ACQ-13).
const MAX_PER_IDENTITY: usize = 1_024;

/// The holder of a key, as a waiter saw it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    pub(super) token: FencingToken,
    pub(super) until: Instant,
}

/// The wait that all callers of one identity share.
#[derive(Debug)]
pub(super) struct SharedWait {
    pub(super) lead: tokio::sync::Mutex<()>,
    state: Mutex<WaitState>,
}

#[derive(Debug)]
struct WaitState {
    /// The holder that the waiters wait for, as last seen by any of them.
    holder: Holder,
    /// A leader's result, with the token of the holder that the leader waited for.
    result: Option<(StoredResult, FencingToken)>,
}

/// The waits of an engine.
#[derive(Debug)]
pub(in crate::engine) struct SharedWaits {
    table: Mutex<WaitTable>,
    max_waiting: usize,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct WaitTable {
    /// Each shared wait, with the number of its waiters.
    waits: HashMap<Identity, (Arc<SharedWait>, usize)>,
    waiting: usize,
    /// The total of the `held_bytes` of all waiters.
    bytes: usize,
}

/// A waiter's part in a shared wait. The waiter drops its ticket when it stops waiting.
#[derive(Debug)]
pub(super) struct WaitTicket<'a> {
    waits: &'a SharedWaits,
    identity: &'a Identity,
    pub(super) shared: Arc<SharedWait>,
    /// The holder that this waiter saw when it joined.
    joined_behind: FencingToken,
    bytes: usize,
}

impl SharedWaits {
    pub(in crate::engine) fn new(max_waiting: usize, max_bytes: usize) -> Self {
        Self { table: Mutex::default(), max_waiting, max_bytes }
    }

    /// Returns how many duplicates are waiting now.
    pub(in crate::engine) fn waiting(&self) -> usize {
        self.table.lock().waiting
    }

    /// Joins the wait for the holder that the caller has just seen. `bytes` is how many bytes the
    /// caller keeps in memory while it waits. Returns `None` if a limit of ACQ-13 is reached.
    pub(super) fn join<'a>(
        &'a self,
        identity: &'a Identity,
        holder: Holder,
        bytes: usize,
    ) -> Option<WaitTicket<'a>> {
        let mut table = self.table.lock();
        let all_bytes = table.bytes.checked_add(bytes)?;
        // The limit on bytes does not apply to a waiter that keeps nothing in memory.
        if table.waiting >= self.max_waiting || (bytes > 0 && all_bytes > self.max_bytes) {
            return None;
        }
        let shared = match table.waits.entry(identity.clone()) {
            Entry::Occupied(mut entry) => {
                let (shared, waiters) = entry.get_mut();
                if *waiters >= MAX_PER_IDENTITY {
                    return None;
                }
                *waiters += 1;
                Arc::clone(shared)
            }
            Entry::Vacant(entry) => {
                let state = Mutex::new(WaitState { holder, result: None });
                let shared = Arc::new(SharedWait { lead: tokio::sync::Mutex::new(()), state });
                entry.insert((Arc::clone(&shared), 1));
                shared
            }
        };
        table.waiting += 1;
        table.bytes = all_bytes;
        drop(table);
        shared.saw(holder);
        Some(WaitTicket { waits: self, identity, shared, joined_behind: holder.token, bytes })
    }
}

impl SharedWait {
    /// Notes the holder that a joining waiter has seen, unless a later holder is already known.
    fn saw(&self, holder: Holder) {
        let mut state = self.state.lock();
        if holder.token >= state.holder.token {
            state.holder = holder;
        }
    }

    /// Notes the holder that the leader has just found, even if a holder with a larger token was
    /// known. A store that has lost data may have gone back to smaller tokens. A wait for a holder
    /// that no longer exists returns immediately, so the leader would run a hot loop.
    pub(super) fn found(&self, holder: Holder) {
        self.state.lock().holder = holder;
    }

    pub(super) fn holder(&self) -> Holder {
        self.state.lock().holder
    }
}

impl WaitTicket<'_> {
    /// Returns an earlier leader's result, if that leader waited for the holder that this waiter
    /// saw or for a later one. Any other result had expired before this waiter joined, so this
    /// waiter checks the store itself (CMP-6).
    pub(super) fn result(&self) -> Option<StoredResult> {
        let state = self.shared.state.lock();
        let (result, behind) = state.result.as_ref()?;
        (self.joined_behind <= *behind).then(|| result.clone())
    }

    /// Publishes `result` for the other waiters. The leader found `result` after its wait for
    /// `holder`. Later callers begin a new wait.
    pub(super) fn publish(&self, result: &StoredResult, holder: Holder) {
        let mut table = self.waits.table.lock();
        if let Entry::Occupied(entry) = table.waits.entry(self.identity.clone())
            && Arc::ptr_eq(&entry.get().0, &self.shared)
        {
            entry.remove();
        }
        self.shared.state.lock().result = Some((result.clone(), holder.token));
    }
}

impl Drop for WaitTicket<'_> {
    fn drop(&mut self) {
        let mut table = self.waits.table.lock();
        table.waiting -= 1;
        table.bytes -= self.bytes;
        if let Entry::Occupied(mut entry) = table.waits.entry(self.identity.clone())
            && Arc::ptr_eq(&entry.get().0, &self.shared)
        {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::Blob;
    use crate::clock::{Clock, SystemClock};

    #[test]
    fn cmp_6_a_result_that_was_found_before_a_later_holder_began_is_not_that_holders() {
        let identity = Identity::of("s", "k").unwrap();
        let waits = SharedWaits::new(10, 0);
        let until = Clock::now(&SystemClock);
        let holder = |token| Holder { token: FencingToken::new(token), until };
        let leader = waits.join(&identity, holder(1), 0).unwrap();
        let beside = waits.join(&identity, holder(1), 0).unwrap();
        let before = leader.shared.holder();
        // The leader has found a result, but has not published it yet. Meanwhile the result's ttl
        // ends, another caller becomes the holder, and a third caller starts to wait for this new
        // holder.
        let behind = waits.join(&identity, holder(2), 0).unwrap();
        leader.publish(&StoredResult::new(Blob::from(vec![1]), None), before);
        assert!(beside.result().is_some());
        assert!(behind.result().is_none(), "it looks for itself");
    }

    #[test]
    fn acq_5_waits_that_have_ended_leave_nothing() {
        let identity = Identity::of("s", "k").unwrap();
        let waits = SharedWaits::new(10, 1_000);
        let until = Clock::now(&SystemClock);
        let holder = Holder { token: FencingToken::new(1), until };
        let waiting = || waits.join(&identity, holder, 100).unwrap();
        drop([waiting(), waiting(), waiting()]);
        let table = waits.table.lock();
        assert_eq!((table.waits.len(), table.waiting, table.bytes), (0, 0, 0));
    }

    #[test]
    fn acq_5_a_waiter_that_saw_a_later_holder_shares_the_result_of_the_wait_for_it() {
        let identity = Identity::of("s", "k").unwrap();
        let waits = SharedWaits::new(10, 0);
        let until = Clock::now(&SystemClock);
        let holder = |token| Holder { token: FencingToken::new(token), until };
        let leader = waits.join(&identity, holder(1), 0).unwrap();
        let behind = waits.join(&identity, holder(2), 0).unwrap();
        let late = waits.join(&identity, holder(1), 0).unwrap();
        let before = leader.shared.holder();
        assert_eq!(before.token, FencingToken::new(2), "an older view changes nothing");
        leader.publish(&StoredResult::new(Blob::from(vec![1]), None), before);
        assert!(behind.result().is_some() && late.result().is_some());
    }
}
