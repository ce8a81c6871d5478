// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Counts`]: counts calls, faults and races, and checks that there were enough for a valid run.
//!
//! This file is over 400 lines long because each count stands beside its minimum.

use crate::event::{Fun, Manifest, Said};
use crate::rules::pace::MEDIAN_OF;
use crate::rules::{lease, live, result, state};
use crate::story::{Fault, Op, Run, StoreClock, Story};

/// One count and its minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// What is counted.
    pub name: &'static str,
    /// How often it happened.
    pub have: u64,
    /// The minimum: with fewer, the run is void.
    pub least: u64,
}

/// The minimum counts of a run of [`REFERENCE_SECS`] on a dedicated machine.
const REFERENCE: [(&str, u64); 9] = [
    ("operations", 100_000),
    ("kills", 1_000),
    ("pauses", 300),
    ("takeovers", 1_000),
    ("stale refusals", 100),
    ("replays", 10_000),
    ("waits ended by completion", 1_000),
    ("in flight", 100),
    ("info", 500),
];

/// The length of a run for which the minimum counts are stated.
const REFERENCE_SECS: u64 = 600;

/// The minimum percentage of operations that overlap a time at which something was really wrong,
/// for a run of any length with pauses.
const OVERLAP_PERCENT: u64 = 30;

/// Like [`OVERLAP_PERCENT`], but for a run without pauses. During most of such a run, nothing is
/// wrong, because a killed process is replaced at once, and a killed server is restarted soon.
const OVERLAP_WITHOUT_PAUSES: u64 = 2;

/// How often each kind of event happened.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "they say it")]
pub struct Counts {
    pub events: u64,
    pub identities: u64,
    pub calls: u64,
    pub operations: u64,
    pub overlapping: u64,
    pub kills: u64,
    pub pauses: u64,
    pub cuts: u64,
    pub restarts: u64,
    pub failovers: u64,
    /// Failovers in which the primary handed over.
    pub handovers: u64,
    pub freezes: u64,
    /// Moves of slots of identities.
    pub moved: u64,
    /// Moves of slots of identities that a failover interrupted.
    pub interrupted: u64,
    pub skewed: u64,
    /// Restarts after an orderly shutdown.
    pub shutdowns: u64,
    pub one_way: u64,
    pub half_open: u64,
    /// Outages of a server.
    pub downs: u64,
    /// Faults of workers and connections during an outage.
    pub struck_while_down: u64,
    /// Moves of the store's clock.
    pub jumps: u64,
    /// Answers that would be wrong if the store's clock had not moved.
    pub explained: u64,
    /// Stories whose tokens fell.
    pub rewound: u64,
    /// Moves of a process's wall clock.
    pub leaps: u64,
    /// How often a process saw its wall clock move.
    pub leaps_seen: u64,
    /// Worker processes with several threads.
    pub threaded: u64,
    /// Worker processes with one thread.
    pub single: u64,
    /// Acquires that were answered at their first poll.
    pub at_once: u64,
    /// Acquires that were sent without a future.
    pub in_place: u64,
    pub grants: u64,
    pub takeovers: u64,
    pub stale_refusals: u64,
    pub completions: u64,
    pub executed: u64,
    pub replays: u64,
    pub waits_ended: u64,
    pub in_flight: u64,
    pub mismatches: u64,
    pub tombstones: u64,
    pub info: u64,
    pub failed: u64,
    /// Calls of operators that were answered.
    pub interventions: u64,
    /// Calls of operators that changed a record.
    pub applied: u64,
    /// Interventions during which a holder or a taker made a call for the key, between the
    /// operator's look and the answer.
    pub races: u64,
    pub effects: u64,
    pub effects_refused: u64,
    /// The times from a completion to the answers of its waiters, in nanoseconds and sorted: for
    /// waiters in the process that completed, and for waiters in other processes.
    pub wakes: [Vec<u64>; 2],
    /// Undisturbed waits that a notification should end: for a change in their process or another.
    pub undisturbed: [u64; 2],
    minima: Vec<(&'static str, u64)>,
}

impl Counts {
    /// Counts the events of a run.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let fault =
            |name: &str| run.faults.iter().filter(|fault| fault.name == name).count() as u64;
        let mut counts = Self {
            events: run.events,
            identities: run.stories.len() as u64,
            kills: fault("kill"),
            pauses: fault("stop"),
            cuts: fault("cut"),
            one_way: fault("one-way"),
            half_open: fault("half-open"),
            shutdowns: fault("shutdown"),
            downs: fault(DOWN),
            struck_while_down: struck_while_down(&run.faults),
            jumps: fault("jump"),
            leaps: fault("leap"),
            leaps_seen: run.leaps_seen,
            threaded: run.threads.values().filter(|threads| **threads > 1).count() as u64,
            single: run.threads.values().filter(|threads| **threads == 1).count() as u64,
            restarts: fault("restart"),
            failovers: fault("failover"),
            handovers: fault("handover"),
            freezes: fault("freeze"),
            skewed: fault("clock"),
            minima: minima(run),
            ..Self::default()
        };
        let windows = windows(&run.faults);
        for story in &run.stories {
            for op in story.ops.iter().filter(|op| op.fun != Fun::Wait) {
                counts.operations += 1;
                counts.overlapping += u64::from(overlaps(
                    &windows,
                    op.invoke,
                    op.answer.or(op.gave_up).unwrap_or(u64::MAX),
                ));
                counts.info += u64::from(op.is_info());
                counts.failed += u64::from(op.failed);
                counts.grants += u64::from(op.is_grant());
                counts.takeovers += u64::from(op.said(Said::TookOver));
                counts.at_once += u64::from(op.at_once);
                counts.in_place += u64::from(op.in_place);
                let stale = matches!(op.fun, Fun::Extend | Fun::Complete | Fun::Release)
                    && op.said(Said::Lost);
                counts.stale_refusals += u64::from(stale);
                if op.fun.is_force() && op.answer.is_some() {
                    counts.interventions += 1;
                    counts.applied += u64::from(op.said(Said::Done));
                    counts.races += u64::from(is_raced(story, op));
                }
                counts.completions += u64::from(op.fun == Fun::Complete && op.said(Said::Done));
                counts.tombstones +=
                    u64::from(op.fun == Fun::Complete && op.tombstone && op.said(Said::Done));
            }
            counts.explained += explained(run, story);
            counts.rewound += u64::from(story.rewound);
            counts.moved += story.moves.iter().filter(|one| !one.lossy).count() as u64;
            counts.interrupted += story.moves.iter().filter(|one| one.lossy).count() as u64;
            counts.calls += story.calls.len() as u64;
            for call in &story.calls {
                let said = |said: Said| u64::from(call.said == Some(said));
                counts.executed += said(Said::Executed);
                counts.replays += said(Said::Replayed);
                counts.in_flight += said(Said::InFlight);
                counts.mismatches += said(Said::Mismatch);
            }
            for live::Woken { call, late, done } in live::woken(run, story) {
                let same = story.calls[call].actor == done.actor;
                counts.waits_ended += 1;
                counts.wakes[usize::from(!same)].push(late);
            }
            counts.effects +=
                story.effects.iter().filter(|effect| effect.said == Said::Applied).count() as u64;
            counts.effects_refused +=
                story.effects.iter().filter(|effect| effect.said == Said::Refused).count() as u64;
        }
        counts.wakes.iter_mut().for_each(|wakes| wakes.sort_unstable());
        counts
    }

    /// Returns the counts that have a minimum, each with its minimum.
    #[must_use]
    pub fn list(&self) -> Vec<Count> {
        let have = |name: &str| match name {
            "operations" => self.operations,
            "kills" => self.kills,
            "pauses" => self.pauses,
            "takeovers" => self.takeovers,
            "stale refusals" => self.stale_refusals,
            "replays" => self.replays,
            "waits ended by completion" => self.waits_ended,
            "in flight" => self.in_flight,
            "info" => self.info,
            "store restarts" => self.restarts,
            "fail-overs" => self.failovers,
            "moves of slots" => self.moved,
            "connections cut or delayed" => self.cuts,
            "one-way connections" => self.one_way,
            "half-open connections" => self.half_open,
            "orderly restarts" => self.shutdowns,
            "faults while a server was down" => self.struck_while_down,
            "moves of the store's clock" => self.jumps,
            "answers that only a moved clock explains" => self.explained,
            "moves of a running process's clock" => self.leaps,
            "moves of clocks that a process saw" => self.leaps_seen,
            "workers with several threads" => self.threaded,
            "workers with one thread" => self.single,
            "acquires without a future" => self.in_place,
            "acquires answered at once" => self.at_once,
            "processes with a wrong clock" => self.skewed,
            "undisturbed wake-ups in the same process" => self.undisturbed[0],
            "undisturbed wake-ups in another process" => self.undisturbed[1],
            "interventions that met a holder or taker" => self.races,
            "percentage of operations that overlap a fault" => {
                self.overlapping * 100 / self.operations.max(1)
            }
            _ => 0,
        };
        self.minima
            .iter()
            .map(|(name, least)| Count { name, have: have(name), least: *least })
            .collect()
    }
}

/// Returns whether a holder or a taker wrote to the record between the operator's look and the
/// answer.
fn is_raced(story: &Story, op: &Op) -> bool {
    let since = op.since.unwrap_or(op.invoke);
    story.ops.iter().any(|other| {
        let writes = match other.fun {
            Fun::Acquire => other.is_grant() || other.is_info(),
            Fun::Extend | Fun::Complete | Fun::Release => true,
            _ => false,
        };
        writes && other.end() >= since && other.invoke <= op.end()
    })
}

/// Returns the minimum counts, in proportion to the run's length and to its share of a machine. A
/// fault that was not requested has no minimum, and one that was requested must have happened at
/// least once.
fn minima(run: &Run) -> Vec<(&'static str, u64)> {
    let manifest = &run.manifest;
    let asked = |fault: &str| manifest.faults.iter().any(|asked| asked == fault);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of some thousands"
    )]
    #[expect(clippy::cast_precision_loss, reason = "of numbers below 2^53")]
    let scaled = |reference: u64| {
        (reference as f64 * manifest.secs as f64 / REFERENCE_SECS as f64 * manifest.share).ceil()
            as u64
    };
    let mut minima: Vec<_> = REFERENCE
        .iter()
        .filter(|(name, _)| match *name {
            "kills" | "takeovers" => asked("kill"),
            "info" => asked("kill") || asked("lose"),
            "pauses" | "stale refusals" => asked("stop"),
            _ => true,
        })
        .map(|(name, reference)| (*name, scaled(*reference).max(1)))
        .collect();
    // A lost answer is an instant, and a killed worker is away only while it starts again, which is
    // short on a fast machine; kills have their own minimum. If there is only one process, all
    // operations run in it, so none can overlap its faults.
    let lasts = |fault: &String| fault != "lose" && fault != "kill";
    if manifest.workers > 1 && manifest.faults.iter().any(lasts) {
        let least = if asked("stop") { OVERLAP_PERCENT } else { OVERLAP_WITHOUT_PAUSES };
        minima.push(("percentage of operations that overlap a fault", least));
    }
    if manifest.races > 0 {
        minima.push(("interventions that met a holder or taker", manifest.races));
    }
    minima.extend(shapes(run));
    for (fault, name) in [
        ("restart", "store restarts"),
        ("failover", "fail-overs"),
        ("slots", "moves of slots"),
        ("cut", "connections cut or delayed"),
        ("one-way", "one-way connections"),
        ("half-open", "half-open connections"),
        ("shutdown", "orderly restarts"),
        ("jump", "moves of the store's clock"),
    ] {
        if asked(fault) {
            minima.push((name, 1));
        }
    }
    minima
}

/// Returns the minimum counts for the clocks, the outages and the threads of a run.
fn shapes(run: &Run) -> Vec<(&'static str, u64)> {
    let Manifest { store, workers, faults, secs, share, .. } = &run.manifest;
    let asked = |fault: &str| faults.iter().any(|asked| asked == fault);
    let mut minima = Vec::new();
    // The only process of a memory store keeps its records, so it is never started again.
    if asked("clock") && store != "memory" {
        minima.push(("processes with a wrong clock", 1));
    }
    // On SQLite, the host's clock is the store's clock.
    if asked("clock") && store != "sqlite" {
        minima.push(("moves of a running process's clock", 1));
        minima.push(("moves of clocks that a process saw", 1));
    }
    if asked("jump") {
        minima.push(("answers that only a moved clock explains", 1));
    }
    let is_struck = ["kill", "stop", "cut"].into_iter().any(asked);
    let downs = run.faults.iter().filter(|fault| fault.name == DOWN).count() as u64;
    if is_struck && ["restart", "shutdown", "failover"].into_iter().any(asked) {
        minima.push(("faults while a server was down", (downs / 2).max(1)));
    }
    // Histories that were written before workers had several threads do not say how many.
    if !run.threads.is_empty() {
        minima.push(("workers with several threads", u64::from(workers.div_ceil(2))));
        minima.extend((*workers > 1).then_some(("workers with one thread", 1)));
    }
    // A short run may have fewer. Then the report says what L2 did not judge.
    if *share >= 1.0 {
        minima.push(("undisturbed wake-ups in the same process", MEDIAN_OF as u64));
        if run.manifest.pushes && *workers > 1 {
            minima.push(("undisturbed wake-ups in another process", MEDIAN_OF as u64));
        }
    }
    let least = if *share > 0.0 { *secs } else { 1 };
    match store.as_str() {
        "memory" => minima.push(("acquires without a future", least)),
        "sqlite" if *workers > 1 => minima.push(("acquires answered at once", least)),
        _ => {}
    }
    minima
}

/// Returns how many answers would be wrong if the store's clock had not moved, because a lease or a
/// ttl ended early or late.
fn explained(run: &Run, story: &Story) -> u64 {
    let Some(first) = story.ops.first() else { return 0 };
    if !story.clock.is_moved(first.invoke, run.last) {
        return 0;
    }
    let mut unmoved = Story { clock: StoreClock::default(), ..story.clone() };
    for op in &mut unmoved.ops {
        op.clock = (op.invoke, op.end());
    }
    let mut found = Vec::new();
    for rule in [lease::s1, lease::s2, result::s4, result::s6, state::s14] {
        rule(run, &unmoved, &mut found);
    }
    found.len() as u64
}

/// The name of a window in which a server does not serve.
const DOWN: &str = "down";

/// Counts the faults of workers and of connections that began while a server was down.
fn struck_while_down(faults: &[Fault]) -> u64 {
    let down: Vec<&Fault> = faults.iter().filter(|fault| fault.name == DOWN).collect();
    let strikes = faults.iter().filter(|fault| {
        ["kill", "stop", "cut", "one-way", "half-open"].contains(&fault.name.as_str())
    });
    let meets = |fault: &&Fault| {
        let is_in =
            |down: &&Fault| down.from <= fault.from && down.to.is_none_or(|to| fault.from <= to);
        down.iter().any(is_in)
    };
    strikes.filter(meets).count() as u64
}

/// Returns the intervals in which something was really wrong. Overlapping intervals are joined.
fn windows(faults: &[Fault]) -> Vec<(u64, u64)> {
    let mut windows: Vec<(u64, u64)> = faults.iter().filter_map(|fault| fault.real).collect();
    windows.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from, to) in windows {
        match joined.last_mut() {
            Some((_, end)) if *end >= from => *end = to.max(*end),
            _ => joined.push((from, to)),
        }
    }
    joined
}

fn overlaps(windows: &[(u64, u64)], from: u64, to: u64) -> bool {
    let next = windows.partition_point(|(_, end)| *end < from);
    windows.get(next).is_some_and(|(begin, _)| *begin <= to)
}
