// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clocks: of workers, which must not matter, and of the store, which decides when leases end
//! (ACQ-7).

use std::io;

use history::{CLOCK_MOVED, Event, Fun, Phase};

use super::{Nemesis, begin};
use crate::aim::Notes;
use crate::mono::MS;
use crate::workers::Skew;

/// How far the store's clock may get from the right time.
const FURTHEST_MS: i64 = 600_000;

/// The longest jump of the store's clock. Some jumps are shorter than the longest lease.
const JUMP_MS: u64 = 60_000;

/// The longest jump of a worker's clock.
const LEAP_MS: u64 = 3_600_000;

/// How long a worker may take to notice that its clock was moved. It looks every 10 ms.
const NOTICED_MS: u64 = 200;

impl Nemesis<'_> {
    /// Gives a wrong clock to a worker that runs, or replaces the worker with one that starts with
    /// a wrong clock.
    pub(super) fn wrong_clock(&mut self) -> io::Result<bool> {
        let victim = self.victim();
        // The first is a move, so that a short run has one.
        let moves = self.made.skews == 0 || self.workers.count() == 1 || self.random.percent(60);
        let is_made = if self.workers.has_own_clocks() && moves {
            self.leap(victim)?
        } else {
            let ahead = if self.random.percent(50) { 3_600 } else { -3_600 };
            // The wrong clock lasts until the process is killed.
            let op = begin(&self.log, "clock", Some(victim));
            self.end(op, "clock");
            self.replace(victim, Skew { ahead })?
        };
        self.made.skews += u32::from(is_made);
        Ok(is_made)
    }

    /// Moves the wall clock of a worker that runs, by a second to an hour. No other fault is made
    /// until the worker has noticed: on a busy machine, many workers are killed before they have
    /// opened the store, and a clock that no process reads shows nothing.
    fn leap(&mut self, victim: u32) -> io::Result<bool> {
        if !self.workers.is_at_work(victim)? {
            return Ok(false);
        }
        let by = ns(self.random.spread(1_000..LEAP_MS));
        let by = if self.random.percent(50) { by } else { -by };
        let notes = Notes::after_now(&self.workers.journal(victim)?)?;
        let op = begin(&self.log, "leap", Some(victim));
        self.workers.leap(victim, by)?;
        notes.wait_for(CLOCK_MOVED, NOTICED_MS);
        self.end(op, "leap");
        Ok(true)
    }

    /// Moves the store's clock by more than the shortest lease, mostly by more than the longest,
    /// forward first. Leases and ttls then end earlier or later by the same amount. Half of the
    /// workers have to be at work: without callers, no answer shows the jump.
    pub(super) fn jump(&mut self) -> io::Result<bool> {
        if 2 * self.workers.count_at_work()? < self.workers.count() {
            return Ok(false);
        }
        let Some(clock) = &self.clock else { return Ok(false) };
        let ahead = clock.ahead_ns();
        let (shortest, longest) = self.lease_ms;
        let from = if self.random.percent(75) { longest } else { shortest };
        let by = ns(self.random.spread(from + from / 10..JUMP_MS.max(2 * from)));
        let is_ahead = ahead + by > ns(FURTHEST_MS.unsigned_abs());
        let forward = self.made.jumps == 0 || !is_ahead && self.random.percent(50);
        self.made.jumps += 1;
        self.set_ahead(if forward { ahead + by } else { ahead - by })?;
        Ok(true)
    }

    /// Moves the store's clock forward to the furthest that it has been ahead, so that after the
    /// last fault no lease lasts longer than it was granted for.
    pub(super) fn end_leases(&mut self) -> io::Result<()> {
        let behind = self.clock.as_ref().is_some_and(|clock| clock.ahead_ns() < self.furthest);
        if behind { self.set_ahead(self.furthest) } else { Ok(()) }
    }

    fn set_ahead(&mut self, ahead: i64) -> io::Result<()> {
        let Some(clock) = &mut self.clock else { return Ok(()) };
        let op = self.log.number();
        let place = self.log.event(op, Fun::Fault, Phase::Invoke);
        let moved_us = Some((ahead - clock.ahead_ns()) / 1_000);
        self.log.write(&Event { note: Some("jump".into()), moved_us, ..place });
        clock.set(ahead)?;
        self.furthest = ahead.max(self.furthest);
        self.end(op, "jump");
        Ok(())
    }
}

/// Milliseconds in nanoseconds.
fn ns(ms: u64) -> i64 {
    i64::try_from(ms * MS).unwrap_or(i64::MAX)
}
