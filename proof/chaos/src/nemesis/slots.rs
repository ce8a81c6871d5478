// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slots of a Redis Cluster: the slots of keys in use move between primaries while calls are under
//! way. If a primary fails over in the middle of a move, the move begins again afterwards, as an
//! administrator would repair it.

use std::io;

use crc::{CRC_16_XMODEM, Crc};
use history::{Event, Fun, Phase};

use super::{AGAIN, Nemesis, begin};
use crate::mono::{self, MS};
use crate::server::{SHARDS, Server};
use crate::world::{self, HOT};

static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The number of slots of a cluster.
const COUNT: u16 = 16_384;
/// How many keys in use are picked. Those with slots on one shard move, about a third.
const PICKS: u64 = 24;
/// How long a slot may be half moved, in milliseconds: before its keys move, and after.
const HALF_MS: u64 = 300;
/// How long after a replica has been promoted an interrupted move begins again, in milliseconds.
const REPAIRED_MS: u64 = 1_000;
/// How long a step that failed is repeated, in milliseconds.
const PATIENCE_MS: u64 = 60_000;
/// How long nodes may take to learn that a slot has moved, in milliseconds.
const SPREAD_MS: u64 = 2_000;
/// How long after the end of a move its effects may show: waiters subscribe at the new primary, and
/// those that missed a notification poll.
const AFTER_MS: u64 = 1_500;

/// The move of one slot.
#[derive(Debug, Clone)]
struct Move {
    slot: u16,
    /// The shards that the slot leaves and gets to.
    way: (usize, usize),
    since: u64,
    step: Step,
    /// When the next step is due. If all steps are done: when the last one was.
    due: u64,
    /// Since when steps have failed.
    failing: Option<u64>,
    /// Whether a step may have been made before, in part.
    again: bool,
    /// If a primary of one of the shards failed over in the middle: since when the records of the
    /// slot may be lost.
    struck: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin,
    Keys,
    End,
    /// The slot has moved, but some nodes may not know.
    Spread,
    Done,
}

/// The slots that move, or have just moved.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// The fault's operation, until all moves have ended.
    op: Option<u64>,
    moves: Vec<Move>,
    /// When the nodes are next asked which slots they know to have moved.
    ask: u64,
}

impl Slots {
    /// Returns whether slots are half moved.
    pub(super) fn are_moving(&self) -> bool {
        self.op.is_some()
    }

    /// Returns whether all moves have ended and are logged.
    pub(super) fn are_still(&self) -> bool {
        self.moves.is_empty()
    }

    /// Returns the shards of a move.
    pub(super) fn way(&self, at: u64) -> Option<(usize, usize)> {
        let count = self.moves.len() as u64;
        let at = usize::try_from(at % count.max(1)).ok()?;
        self.moves.get(at).map(|one| one.way)
    }

    /// Notes that a shard's primary fails over, and may lose what it has acknowledged since then.
    /// Every move, even one that has just ended, begins again afterwards: the shard's replica may
    /// not know of it, and then no node serves the slot. Returns how many moves the failover
    /// interrupts.
    pub(super) fn strike(&mut self, shard: usize, since: u64) -> u32 {
        let mut struck = 0;
        for one in &mut self.moves {
            if one.way.0 == shard || one.way.1 == shard {
                one.struck.get_or_insert(since);
                struck += 1;
            }
            (one.step, one.again, one.failing) = (Step::Begin, true, None);
            one.due = mono::now() + REPAIRED_MS * MS;
        }
        struck
    }
}

impl Nemesis<'_> {
    /// Begins to move the slots of some keys in use from one shard to another. As with `redis-cli`,
    /// no slot moves in another direction meanwhile: the nodes' claims on slots are ordered by
    /// epochs that each node increments by itself, so a claim on one slot could undo a move of
    /// another, and delete the slot's keys.
    pub(super) fn move_slots(&mut self) -> bool {
        let (Some(cluster), None) =
            (self.server.as_deref_mut().and_then(Server::cluster), self.outage)
        else {
            return false;
        };
        if self.slots.are_moving() {
            return false;
        }
        let now = mono::now();
        let newest = self.world.newest();
        let by = usize::from(self.random.percent(50)) + 1;
        let mut way = None;
        for _ in 0..PICKS {
            let slot = slot_of(newest.saturating_sub(self.random.within(0..HOT)));
            let is_known = self.slots.moves.iter().any(|one| one.slot == slot);
            let from = cluster.shard_of(slot);
            let way = *way.get_or_insert((from, (from + by) % SHARDS));
            if is_known || way.0 != from {
                continue;
            }
            self.slots.moves.push(Move {
                slot,
                way,
                since: now,
                step: Step::Begin,
                due: now,
                failing: None,
                again: false,
                struck: None,
            });
        }
        let op = begin(&self.log, "slots", None);
        self.broke(op);
        self.slots.op = Some(op);
        true
    }

    /// Makes the steps of moves that are due, unless a primary is away.
    pub(super) fn go_on_with_slots(&mut self) -> io::Result<()> {
        let cluster = self.server.as_deref_mut().and_then(Server::cluster);
        let Some(cluster) = cluster else { return Ok(()) };
        if self.outage.is_some_and(|one| one.is_down()) {
            let due = mono::now() + REPAIRED_MS * MS;
            self.slots.moves.iter_mut().for_each(|one| one.due = due);
            return Ok(());
        }
        for one in self.slots.moves.iter_mut().filter(|one| one.step != Step::Done) {
            let now = mono::now();
            if now < one.due {
                continue;
            }
            let (done, next) = match one.step {
                Step::Begin => (cluster.begin_move(one.slot, one.way, one.again), Step::Keys),
                Step::Keys => (cluster.move_keys(one.slot, one.way, one.again), Step::End),
                Step::End => (cluster.end_move(one.slot, one.way), Step::Spread),
                // A slot of which a node does not learn moves again.
                Step::Spread | Step::Done => (Err(unknown()), Step::Done),
            };
            match done {
                Ok(()) => {
                    let pause = if next == Step::Spread {
                        SPREAD_MS
                    } else {
                        self.random.within(0..HALF_MS)
                    };
                    (one.step, one.due) = (next, mono::now() + pause * MS);
                }
                Err(error) => {
                    if now > *one.failing.get_or_insert(now) + PATIENCE_MS * MS {
                        let text = format!("slot {} does not move: {error}", one.slot);
                        return Err(io::Error::other(text));
                    }
                    (one.step, one.due, one.again) = (Step::Begin, now + AGAIN * MS, true);
                }
            }
        }
        let spread = self.slots.moves.iter().filter(|one| one.step == Step::Spread);
        let spread: Vec<_> = spread.map(|one| (one.slot, one.way.1)).collect();
        if !spread.is_empty() && mono::now() > self.slots.ask {
            // A node that does not answer may not know.
            let known = cluster.known(spread).unwrap_or_default();
            for one in self.slots.moves.iter_mut().filter(|one| known.contains(&one.slot)) {
                (one.step, one.due) = (Step::Done, mono::now());
                self.made.slots += 1;
            }
            self.slots.ask = mono::now() + AGAIN * MS;
        }
        let moved = self.slots.moves.iter().all(|one| one.step == Step::Done);
        if let Some(op) = self.slots.op.filter(|_| moved) {
            self.slots.op = None;
            self.end(op, "slots");
        }
        let now = mono::now();
        let is_over = |one: &Move| one.step == Step::Done && now > one.due + AFTER_MS * MS;
        let (over, left) = std::mem::take(&mut self.slots.moves).into_iter().partition(is_over);
        self.slots.moves = left;
        self.tell_moved(&over);
        Ok(())
    }

    /// Logs the identities whose slots moved, and whether the move may have lost their records.
    fn tell_moved(&self, moves: &[Move]) {
        if moves.is_empty() {
            return;
        }
        for number in 0..=self.world.newest() {
            let slot = slot_of(number);
            for one in moves.iter().filter(|one| one.slot == slot) {
                let (scope, key) = world::name(number);
                let place = self.log.event(0, Fun::Moved, Phase::Ok);
                let (scope, key) = (Some(scope), Some(key));
                let mono_ns = one.due + AFTER_MS * MS;
                let since_ns = Some(one.since);
                let moved = Event { scope, key, since_ns, mono_ns, ..place };
                self.log.write(&moved);
                if one.struck.is_some() {
                    self.log.write(&Event { since_ns: one.struck, lossy: true, ..moved });
                }
            }
        }
    }
}

fn unknown() -> io::Error {
    io::Error::other("a node does not know that the slot has moved")
}

/// Returns the slot of an identity's record: the checksum of the part of the key in braces.
fn slot_of(number: u64) -> u16 {
    let (scope, key) = world::name(number);
    CRC.checksum(format!("{}:{scope}:{key}", scope.len()).as_bytes()) % COUNT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `CLUSTER KEYSLOT "retryproof:{5:chaos:Key-0}"` on Redis 7.0.
    #[test]
    fn sto_8_the_slot_of_an_identity_is_the_slot_of_its_record() {
        assert_eq!(world::name(2), ("chaos".into(), "Key-0".into()));
        assert_eq!(slot_of(2), 712);
    }
}
