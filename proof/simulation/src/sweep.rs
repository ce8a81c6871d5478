// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`sweep`]: runs many seeds, on all cores.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use defects::Defect;
use history::{Counts, report};
use parking_lot::Mutex;

use crate::run::Simulation;

/// The counts of all runs together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Runs.
    pub seeds: u64,
    /// The counts, with their names, in a fixed order.
    pub counts: [(&'static str, u64); 12],
}

impl Totals {
    fn of(counts: &Counts, unsearched: u64) -> Self {
        let counts = [
            ("operations", counts.operations),
            ("operations without an answer", counts.info),
            ("calls", counts.calls),
            ("replays", counts.replays),
            ("waits ended by completion", counts.waits_ended),
            ("in flight", counts.in_flight),
            ("takeovers", counts.takeovers),
            ("stale refusals", counts.stale_refusals),
            ("tombstones", counts.tombstones),
            ("crashes", counts.kills),
            ("effects refused", counts.effects_refused),
            ("stories that S18 gave up", unsearched),
        ];
        Self { seeds: 1, counts }
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        for ((name, count), (other_name, other)) in self.counts.iter_mut().zip(other.counts) {
            (*name, *count) = (other_name, *count + other);
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} seeds", self.seeds)?;
        self.counts.iter().try_for_each(|(name, count)| write!(f, ", {count} {name}"))
    }
}

/// A seed that broke a rule.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The first rule that the seed broke.
    pub rule: &'static str,
    /// The judge's report.
    pub report: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, rule, report } = self;
        writeln!(f, "seed {seed} broke {rule}; to replay it:")?;
        writeln!(f, "    cargo run -p simulation --release -- --seed {seed}")?;
        write!(f, "{report}")
    }
}

fn try_seed(seed: u64, plant: Option<Defect>) -> Result<Totals, Failure> {
    let simulation = Simulation::run(seed, plant);
    let (run, judgement) = simulation.judge();
    match judgement.violations.first() {
        None => Ok(Totals::of(&judgement.counts, judgement.unsearched)),
        Some(broken) => {
            let report = report(&run, &judgement, &history::Lines::default());
            Err(Failure { seed, rule: broken.rule, report })
        }
    }
}

/// Runs the seeds.
///
/// # Errors
/// The failure with the smallest seed among those that were found. A sweep ends soon after the
/// first failure.
pub fn sweep(seeds: Range<u64>, plant: Option<Defect>) -> Result<Totals, Box<Failure>> {
    let next = AtomicU64::new(seeds.start);
    let (totals, failure) = (Mutex::new(Totals::default()), Mutex::new(None::<Failure>));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || failure.lock().is_some() {
                return;
            }
            match try_seed(seed, plant) {
                Ok(more) => totals.lock().add(&more),
                Err(found) => {
                    let mut first = failure.lock();
                    if first.as_ref().is_none_or(|first| seed < first.seed) {
                        *first = Some(found);
                    }
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| _ = scope.spawn(work));
    });
    match failure.into_inner() {
        Some(failure) => Err(Box::new(failure)),
        None => Ok(totals.into_inner()),
    }
}

/// Suppresses the messages of panics that the runs cause on purpose, in actions and in store calls.
pub fn silence_planned_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        if !text.contains("(injected)") && text != "an action that panics" {
            print(info);
        }
    }));
}
