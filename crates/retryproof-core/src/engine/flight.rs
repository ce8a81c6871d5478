// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single flight: the waiters of one identity in this process share one wait on the store (ACQ-5,
//! ACQ-13).
//!
//! Leadership is a fair mutex: whoever has it talks to the store, and a drop, a deadline and a
//! grant all pass it on. A result is left for the others to read when leadership reaches them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::lock::Mutex;

use crate::clock::Instant;
use crate::identity::Identity;
use crate::owner::FencingToken;
use crate::payload::StoredResult;

/// Most waiters of one identity in one process (ACQ-13).
const MAX_PER_IDENTITY: usize = 1_024;

/// The holder that is waited for, as last seen by any waiter of the flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) token: FencingToken,
    pub(crate) until: Instant,
}

#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) lead: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    seen: Seen,
    /// With the holder that its finder waited for.
    result: Option<(StoredResult, FencingToken)>,
}

#[derive(Debug)]
pub(crate) struct Flights {
    table: Mutex<Table>,
    max_waiting: usize,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Table {
    flights: HashMap<Identity, (Arc<Flight>, usize)>,
    waiting: usize,
    /// What all of them keep in memory, as they count it.
    bytes: usize,
}

/// A waiter's place in a flight; dropped when its wait ends.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    flights: &'a Flights,
    identity: &'a Identity,
    pub(crate) flight: Arc<Flight>,
    own: FencingToken,
    bytes: usize,
}

impl Flights {
    pub(crate) fn new(max_waiting: usize, max_bytes: usize) -> Self {
        Self { table: Mutex::default(), max_waiting, max_bytes }
    }

    /// How many duplicates wait in this process.
    pub(crate) fn waiting(&self) -> usize {
        self.table.lock().waiting
    }

    /// Joins the wait for the holder that the caller has just seen, with the bytes that the caller
    /// keeps in memory meanwhile; `None` above the bounds of ACQ-13.
    pub(crate) fn join<'a>(
        &'a self,
        identity: &'a Identity,
        seen: Seen,
        bytes: usize,
    ) -> Option<Seat<'a>> {
        let mut table = self.table.lock();
        let all_bytes = table.bytes.checked_add(bytes)?;
        // Without bytes it adds nothing to what the others keep.
        if table.waiting >= self.max_waiting || (bytes > 0 && all_bytes > self.max_bytes) {
            return None;
        }
        let flight = match table.flights.entry(identity.clone()) {
            Entry::Occupied(mut entry) => {
                let (flight, seats) = entry.get_mut();
                if *seats >= MAX_PER_IDENTITY {
                    return None;
                }
                *seats += 1;
                Arc::clone(flight)
            }
            Entry::Vacant(entry) => {
                let state = Mutex::new(State { seen, result: None });
                let flight = Arc::new(Flight { lead: tokio::sync::Mutex::new(()), state });
                entry.insert((Arc::clone(&flight), 1));
                flight
            }
        };
        table.waiting += 1;
        table.bytes = all_bytes;
        drop(table);
        flight.saw(seen);
        Some(Seat { flights: self, identity, flight, own: seen.token, bytes })
    }
}

impl Flight {
    /// Notes the holder that somebody who joins has seen, unless a later one is known.
    fn saw(&self, seen: Seen) {
        let mut state = self.state.lock();
        if seen.token >= state.seen.token {
            state.seen = seen;
        }
    }

    /// Notes what the leader has just found, whatever was known: a store that lost data may have
    /// gone back to smaller tokens, and to wait for a holder that is gone would be to ask in a hot
    /// loop.
    pub(crate) fn found(&self, seen: Seen) {
        self.state.lock().seen = seen;
    }

    pub(crate) fn seen(&self) -> Seen {
        self.state.lock().seen
    }
}

impl Seat<'_> {
    /// The result that an earlier leader found, if it is one for this waiter: found while waiting
    /// for the holder that this waiter saw, or for a later one. Otherwise this waiter looks for
    /// itself: it came behind that result, whose ttl was over (CMP-6).
    pub(crate) fn result(&self) -> Option<StoredResult> {
        let state = self.flight.state.lock();
        state.result.as_ref().filter(|(_, of)| self.own <= *of).map(|(result, _)| result.clone())
    }

    /// Leaves a result, found after the wait for the holder `of`, for the flight's other waiters;
    /// later callers begin a new flight.
    pub(crate) fn land(&self, result: &StoredResult, of: Seen) {
        let mut table = self.flights.table.lock();
        if let Entry::Occupied(entry) = table.flights.entry(self.identity.clone())
            && Arc::ptr_eq(&entry.get().0, &self.flight)
        {
            entry.remove();
        }
        self.flight.state.lock().result = Some((result.clone(), of.token));
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut table = self.flights.table.lock();
        table.waiting -= 1;
        table.bytes -= self.bytes;
        if let Entry::Occupied(mut entry) = table.flights.entry(self.identity.clone())
            && Arc::ptr_eq(&entry.get().0, &self.flight)
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
        let flights = Flights::new(10, 0);
        let until = Clock::now(&SystemClock);
        let seen = |token| Seen { token: FencingToken::new(token), until };
        let leader = flights.join(&identity, seen(1), 0).unwrap();
        let beside = flights.join(&identity, seen(1), 0).unwrap();
        let before = leader.flight.seen();
        // The leader has its answer. Its ttl ends, another holder begins, and a caller sees that
        // one.
        let behind = flights.join(&identity, seen(2), 0).unwrap();
        leader.land(&StoredResult::new(Blob::from(vec![1]), None), before);
        assert!(beside.result().is_some());
        assert!(behind.result().is_none(), "it looks for itself");
    }
}
