// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Setting`]: what a seed determines before its run begins.

use retryproof_testkit::Outage;

use crate::link::Delays;
use crate::random::Random;
use crate::world::World;

/// `operation-timeout` of the engines, in ms.
pub(crate) const OPERATION_TIMEOUT_MS: u64 = 400;

/// Something that happens to the run, not to a single call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Strike {
    /// The store is unavailable.
    Begin(Outage),
    /// No call arrives for this many ms.
    Stall(u64),
    /// The store is available again.
    End,
    /// The process dies: none of its futures is polled again.
    Crash(usize),
    /// A new process replaces the dead one.
    Start(usize),
    /// Expired records are deleted.
    Purge,
}

/// The world of a seed.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) processes: usize,
    pub(crate) callers: u64,
    pub(crate) world: World,
    pub(crate) lease_ms: (u64, u64),
    /// `None` if the store runs in-process and answers at once, as the memory store does.
    pub(crate) delays: Option<Delays>,
    /// How many of a thousand calls of each process suffer each kind of fault.
    pub(crate) faults: u64,
    /// The processes with clocks that are an hour fast, as bits.
    pub(crate) fast: u64,
    pub(crate) length_ms: u64,
    /// The strikes, each with its time in ms, in order.
    pub(crate) strikes: Vec<(u64, Strike)>,
    /// The time that the faults may add to every time bound, in ms.
    pub(crate) slack_ms: u64,
}

impl Setting {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let (processes, callers) = (random.within(2..9), random.within(1..4));
        // The more callers there are, the shorter the run, because the judge's rule S18 gives up on
        // an identity with too many calls.
        let longest = (7_000 / (processes * callers)).clamp(400, 2_500);
        let length_ms = random.within(longest / 2..longest);
        let shortest = one_of(random, &[40, 100, 300]);
        let lease_ms = (shortest, one_of(random, &[350, 600, 2_000]));
        // A calm world has no late calls, failing calls or outages, so its bounds of time are
        // strict, and nothing excuses a lost lease (L4).
        let (is_calm, is_near) = (random.percent(35), random.percent(20));
        let usual = one_of(random, &[0, 2, 12]);
        let (late, per_mille) =
            if is_calm { (usual, 0) } else { (2 * OPERATION_TIMEOUT_MS, random.within(0..30)) };
        let mut setting = Self {
            processes: below(usize::MAX, processes),
            callers,
            world: World { hot: random.within(1..4), hot_ms: random.within(60..500) },
            lease_ms,
            delays: (!is_near).then_some(Delays { usual, late, per_mille }),
            faults: if is_calm || is_near { 0 } else { random.within(0..20) },
            fast: random.next() & random.next(),
            length_ms,
            strikes: Vec::new(),
            slack_ms: 10 + 8 * usual,
        };
        let mut longest = 0;
        if !is_calm && !is_near {
            longest = setting.draw_outages(random);
        }
        setting.draw_crashes(random);
        for _ in 0..random.within(0..4) {
            setting.strikes.push((random.within(0..length_ms), Strike::Purge));
        }
        // Drop the strikes that come after the end of the run, because the end also ends every
        // outage.
        setting.strikes.retain(|(at, _)| *at < length_ms);
        setting.strikes.sort_by_key(|(at, _)| *at);
        if !is_calm && !is_near {
            // Faults lengthen waits: a wait can get no answer, and the pause after a failed wait
            // grows to 500 ms.
            setting.slack_ms = longest + lease_ms.1 + 2 * OPERATION_TIMEOUT_MS + 2 * late + 1_000;
        }
        setting
    }

    /// Adds random outages that follow one another. Returns the length of the longest outage.
    fn draw_outages(&mut self, random: &mut Random) -> u64 {
        let (mut at, mut longest) = (0, 0);
        for _ in 0..random.within(0..4) {
            at += random.within(20..self.length_ms);
            let length = random.spread(10..900);
            let strike = match random.within(0..3) {
                0 => Strike::Begin(Outage::Refuse),
                1 => Strike::Begin(Outage::Swallow),
                _ => Strike::Stall(length),
            };
            self.strikes.extend([(at, strike), (at + length, Strike::End)]);
            at += length + 1;
            longest = longest.max(length);
        }
        longest
    }

    fn draw_crashes(&mut self, random: &mut Random) {
        for _ in 0..random.within(0..5) {
            let (at, proc) = (random.within(20..self.length_ms), random.within(0..8));
            let proc = below(self.processes, proc);
            let back = at + random.within(1..600);
            self.strikes.extend([(at, Strike::Crash(proc)), (back, Strike::Start(proc))]);
        }
    }
}

/// Returns the number modulo the bound.
fn below(bound: usize, number: u64) -> usize {
    usize::try_from(number).unwrap_or(0) % bound
}

fn one_of<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[below(choices.len(), random.next() >> 1)]
}
