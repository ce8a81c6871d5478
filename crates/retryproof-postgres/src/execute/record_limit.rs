// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Doors`]: how many connections the acquires of one record may have, and those of records that
//! are locked.
//!
//! An acquire of a record whose row an open transaction has locked sits in the server until it
//! gives up, and its connection with it. Without a bound, the callers of one such record take every
//! connection of the store, and the callers of all others wait behind them. So the acquires of one
//! record have at most half of the connections; of a record that was found locked a moment ago, one
//! at a time; of all these records together, a quarter. Acquires outside wait without a connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::FencingToken;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use crate::waiters::recent::Recent;

/// For how long a record that was found locked counts as such, unless an acquire is answered
/// before; and how many do.
const LOCKED_FOR: Duration = Duration::from_secs(2);
const MOST_LOCKED: usize = 4_096;

pub(crate) struct Doors {
    /// Acquires of one record that may be under way at once.
    each: usize,
    /// Acquires of records that were found locked.
    probes: usize,
    rooms: Mutex<Rooms>,
}

struct Rooms {
    of: HashMap<u64, Room>,
    locked: Recent,
    probing: usize,
}

#[derive(Default)]
struct Room {
    inside: usize,
    outside: usize,
    bell: Arc<Notify>,
    /// That a look has found it locked, when that look began, and the token of its holder.
    verdict: Option<(Instant, FencingToken)>,
}

/// What an acquire finds at the door.
pub(crate) enum Knock<'a> {
    In(Pass<'a>),
    Out(Queue<'a>),
}

/// Leave to send an acquire; given back on drop.
pub(crate) struct Pass<'a> {
    doors: &'a Doors,
    hash: u64,
    /// The record was found locked a moment ago.
    pub(crate) is_probe: bool,
}

/// A place outside.
pub(crate) struct Queue<'a> {
    doors: &'a Doors,
    hash: u64,
    /// Rung when there may be room inside, and for a verdict.
    pub(crate) bell: std::pin::Pin<Box<OwnedNotified>>,
}

impl Doors {
    /// Of a store with so many connections for calls.
    pub(crate) fn new(connections: usize) -> Self {
        let locked = Recent::new(LOCKED_FOR, MOST_LOCKED);
        Self {
            each: (connections / 2).max(1),
            probes: (connections / 4).max(1),
            rooms: Mutex::new(Rooms { of: HashMap::new(), locked, probing: 0 }),
        }
    }

    pub(crate) fn knock(&self, hash: u64) -> Knock<'_> {
        let rooms = &mut *self.rooms.lock();
        let is_probe = rooms.locked.has(hash, Instant::now());
        let room = rooms.of.entry(hash).or_default();
        let has_room = if is_probe {
            room.inside == 0 && rooms.probing < self.probes
        } else {
            room.inside < self.each
        };
        if has_room {
            room.inside += 1;
            rooms.probing += usize::from(is_probe);
            return Knock::In(Pass { doors: self, hash, is_probe });
        }
        room.outside += 1;
        let bell = Box::pin(Arc::clone(&room.bell).notified_owned());
        Knock::Out(Queue { doors: self, hash, bell })
    }

    /// Whether the record was found locked a moment ago.
    pub(crate) fn is_locked(&self, hash: u64) -> bool {
        self.rooms.lock().locked.has(hash, Instant::now())
    }

    /// Tells all who wait outside what a look that began at `since` has found: the record is
    /// locked.
    pub(crate) fn tell(&self, hash: u64, since: Instant, token: FencingToken) {
        if let Some(room) = self.rooms.lock().of.get_mut(&hash) {
            room.verdict = Some((since, token));
            room.bell.notify_waiters();
        }
    }
}

impl Rooms {
    fn leave(&mut self, hash: u64, change: impl FnOnce(&mut Room)) {
        if let Some(room) = self.of.get_mut(&hash) {
            change(room);
            if room.inside + room.outside == 0 {
                self.of.remove(&hash);
            }
        }
    }
}

impl Pass<'_> {
    /// The acquire met the lock of an open transaction.
    pub(crate) fn locked(self) {
        self.doors.rooms.lock().locked.note(self.hash, Instant::now());
    }

    /// The acquire was answered.
    pub(crate) fn answered(self) {
        if self.is_probe {
            self.doors.rooms.lock().locked.forget(self.hash, Instant::now());
        }
    }
}

impl Queue<'_> {
    /// What a look found that began after `since`.
    pub(crate) fn verdict(&self, since: Instant) -> Option<FencingToken> {
        let verdict = self.doors.rooms.lock().of.get(&self.hash)?.verdict;
        verdict.filter(|(began, _)| *began >= since).map(|(_, token)| token)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut rooms = self.doors.rooms.lock();
        rooms.probing -= usize::from(self.is_probe);
        rooms.leave(self.hash, |room| {
            room.inside -= 1;
            // One comes in for the one that goes.
            if room.outside > 0 {
                room.bell.notify_one();
            }
        });
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        self.doors.rooms.lock().leave(self.hash, |room| room.outside -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(doors: &Doors, hash: u64) -> Pass<'_> {
        match doors.knock(hash) {
            Knock::In(pass) => pass,
            Knock::Out(_) => panic!("no room"),
        }
    }

    fn out(doors: &Doors, hash: u64) -> Queue<'_> {
        match doors.knock(hash) {
            Knock::Out(queue) => queue,
            Knock::In(_) => panic!("there is room"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cmp_7_the_callers_of_locked_records_have_a_part_of_the_connections() {
        let doors = Doors::new(8);
        let all: Vec<_> = (0..4).map(|_| enter(&doors, 1)).collect();
        let waiting = out(&doors, 1);
        // Other records have room; and one comes in for each that goes.
        drop(enter(&doors, 2));
        let mut all = all.into_iter();
        all.next().expect("four").answered();
        let mut waiting = waiting;
        waiting.bell.as_mut().await;
        drop(waiting);
        all.next().expect("three").locked();
        assert!(doors.is_locked(1));
        drop(all);
        // Now one at a time, and two for all that are locked.
        let probe = enter(&doors, 1);
        let since = Instant::now();
        let mut waiting = out(&doors, 1);
        assert_eq!(waiting.verdict(since), None);
        doors.tell(1, since, FencingToken::new(7));
        waiting.bell.as_mut().await;
        assert_eq!(waiting.verdict(since), Some(FencingToken::new(7)));
        assert_eq!(waiting.verdict(since + LOCKED_FOR), None, "an older look");
        drop(waiting);
        enter(&doors, 2).locked();
        enter(&doors, 3).locked();
        let second = enter(&doors, 2);
        drop(out(&doors, 3));
        drop(enter(&doors, 4));
        probe.answered();
        drop(second);
        assert!(!doors.is_locked(1) && doors.is_locked(2));
        drop((enter(&doors, 1), enter(&doors, 1)));
        tokio::time::advance(LOCKED_FOR * 2).await;
        assert!(!doors.is_locked(2));
        assert!(doors.rooms.lock().of.is_empty() && doors.rooms.lock().probing == 0);
    }
}
