// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections: cut, delayed, one-way and half-open.

use super::{Due, Nemesis, begin};
use crate::mono::{self, MS};
use crate::plan::OPERATION_TIMEOUT_MS;
use crate::proxy::{Mood, Proxy};

/// This many of a hundred disturbances hit the connections of all workers. The others hit those of
/// one worker.
const ALL_CUT_PERCENT: u64 = 20;

impl Nemesis<'_> {
    /// Disturbs the connections of one worker, or sometimes of all workers, for a while, in a way
    /// that is chosen at random. If all connections were disturbed for most of the time, most calls
    /// would have no answer, and the judge could decide little.
    pub(super) fn disturb(&mut self, name: &'static str) -> bool {
        let is_cutting = |due: &Due| matches!(due, Due::Quiet(..) | Due::Closed(..));
        if self.proxies.is_empty() || self.due.iter().any(|(_, due)| is_cutting(due)) {
            return false;
        }
        let victim = self.one_or_all();
        let (mood, ms) = if name == "one-way" { self.one_way() } else { self.cut() };
        let op = begin(&self.log, name, victim);
        self.proxies(victim).for_each(|proxy| proxy.set(mood));
        self.due.push((mono::now() + ms * MS, Due::Quiet(op, name, victim)));
        true
    }

    /// Chooses at random whose connections a fault disturbs; `None` stands for all workers.
    fn one_or_all(&mut self) -> Option<u32> {
        (!self.random.percent(ALL_CUT_PERCENT)).then(|| self.victim())
    }

    fn cut(&mut self) -> (Mood, u64) {
        self.made.cuts += 1;
        let mood = match self.random.within(0..6) {
            // Cut every connection of the victim immediately, whatever point its call has reached.
            0 => Mood::Cut,
            // Cut after a number of bytes to or from the server: within a request, or between a
            // request and its answer.
            1 => Mood::CutAfterRequest(self.random.spread(1..400)),
            2 => Mood::CutAfterReply(self.random.spread(1..200)),
            // The request arrives, but its answer does not.
            3 => Mood::DropReplies,
            4 => Mood::Delay(self.random.spread(5..300)),
            // No data passes, and neither side gets an error.
            _ => Mood::Stall,
        };
        (mood, self.random.spread(20..400))
    }

    /// Chooses at random a mood in which bytes pass in one direction only, and its length, which in
    /// half of the cases is longer than a call may take.
    fn one_way(&mut self) -> (Mood, u64) {
        self.made.one_way += 1;
        let deaf = self.random.percent(50);
        let ms = if self.random.percent(50) {
            self.random.within(20..OPERATION_TIMEOUT_MS / 2)
        } else {
            OPERATION_TIMEOUT_MS + self.random.within(100..700)
        };
        (if deaf { Mood::DropReplies } else { Mood::DropRequests }, ms)
    }

    /// Makes all connections of one worker, or of all workers, half-open. They stay half-open for
    /// longer than a call may take, so at the end no call that they have swallowed is under way.
    pub(super) fn sever(&mut self) -> bool {
        if self.proxies.is_empty() {
            return false;
        }
        let victim = self.one_or_all();
        let op = begin(&self.log, "half-open", victim);
        self.made.half_open += 1;
        self.broke(op);
        self.proxies(victim).for_each(Proxy::sever);
        let until = mono::now() + (OPERATION_TIMEOUT_MS + 200) * MS;
        self.due.push((until, Due::End(op, "half-open")));
        true
    }
}
