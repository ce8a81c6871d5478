// SPDX-License-Identifier: MIT OR Apache-2.0
//! `chaos --failovers N`: runs one after the other, until they have made N failovers. A file keeps
//! the counts of each run, so that the command continues where it stopped.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;

use crate::mono;
use crate::plan::Plan;
use crate::supervisor::{self, Ended};

/// The folder of the counts, below the present one.
const FOLDER: &str = "target/chaos";

/// The counts of a run, or of several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tally {
    secs: u64,
    identities: u64,
    operations: u64,
    kills: u64,
    /// Failovers whose primary was killed.
    killed: u64,
    /// Failovers whose primary was shut down.
    shut_down: u64,
    /// Failovers whose primary handed over.
    handed_over: u64,
    /// Failovers whose primary was frozen.
    frozen: u64,
    takeovers: u64,
    /// Findings that a documented loss explains.
    losses: u64,
    violations: u64,
    /// For how long the store did not answer at each failover, in milliseconds.
    pauses: Vec<u64>,
}

impl Tally {
    fn of(ended: &Ended, secs: u64) -> Self {
        let (counts, judgement) = (&ended.judgement.counts, &ended.judgement);
        Self {
            secs,
            identities: counts.identities,
            operations: counts.operations,
            kills: counts.kills,
            killed: counts.failovers,
            shut_down: counts.shutdowns,
            handed_over: counts.handovers,
            frozen: counts.freezes,
            takeovers: counts.takeovers,
            losses: judgement.losses.len() as u64,
            violations: judgement.violations.len() as u64,
            pauses: judgement.pauses.iter().map(|ns| ns / mono::MS).collect(),
        }
    }

    fn failovers(&self) -> u64 {
        self.killed + self.shut_down + self.handed_over + self.frozen
    }

    /// Returns the counts as a line: the numbers, and then the pauses.
    fn line(&self) -> String {
        let numbers = self.numbers().map(|number| number.to_string());
        let pauses: Vec<_> = self.pauses.iter().map(u64::to_string).collect();
        format!("{}\t{}\n", numbers.join("\t"), pauses.join(","))
    }

    fn numbers(&self) -> [u64; 11] {
        [
            self.secs,
            self.identities,
            self.operations,
            self.kills,
            self.killed,
            self.shut_down,
            self.handed_over,
            self.frozen,
            self.takeovers,
            self.losses,
            self.violations,
        ]
    }

    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split('\t').collect();
        let [numbers @ .., pauses] = &words[..] else { return None };
        let numbers: Vec<u64> =
            numbers.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let numbers: [u64; 11] = numbers.try_into().ok()?;
        let [secs, identities, operations, kills, killed, shut_down, ..] = numbers;
        let [.., handed_over, frozen, takeovers, losses, violations] = numbers;
        let words = pauses.split(',').filter(|word| !word.is_empty());
        let pauses = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        Some(Self {
            secs,
            identities,
            operations,
            kills,
            killed,
            shut_down,
            handed_over,
            frozen,
            takeovers,
            losses,
            violations,
            pauses,
        })
    }

    fn and(mut self, other: Self) -> Self {
        self.secs += other.secs;
        self.identities += other.identities;
        self.operations += other.operations;
        self.kills += other.kills;
        self.killed += other.killed;
        self.shut_down += other.shut_down;
        self.handed_over += other.handed_over;
        self.frozen += other.frozen;
        self.takeovers += other.takeovers;
        self.losses += other.losses;
        self.violations += other.violations;
        self.pauses.extend(other.pauses);
        self.pauses.sort_unstable();
        self
    }
}

/// Makes runs until all of this revision have made `failovers` failovers. Returns whether none of
/// them found a violation. A void run is printed, but does not count.
pub(crate) fn run(plan: &Plan, failovers: u64) -> Result<bool, Box<dyn Error>> {
    fs::create_dir_all(FOLDER)?;
    let name = format!("{}-{}.tsv", plan.store, supervisor::revision());
    let path = Path::new(FOLDER).join(name);
    let mut seed = plan.seed;
    loop {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines = text.lines().map(|line| {
            Tally::read(line).ok_or_else(|| format!("{}: not a line: {line}", path.display()))
        });
        let all = lines.collect::<Result<Vec<_>, _>>()?;
        let runs = all.len();
        let sum = all.into_iter().fold(Tally::default(), Tally::and);
        println!("{}", said(&sum, runs, &path));
        if sum.violations > 0 {
            return Ok(false);
        }
        if sum.failovers() >= failovers {
            return Ok(true);
        }
        let ended = supervisor::make(Plan { seed, ..plan.clone() })?;
        seed = mono::now();
        let violated = !ended.judgement.violations.is_empty();
        if ended.green || violated {
            let mut file = fs::File::options().create(true).append(true).open(&path)?;
            file.write_all(Tally::of(&ended, plan.secs).line().as_bytes())?;
        } else {
            println!("this run is void, and does not count");
        }
    }
}

fn said(sum: &Tally, runs: usize, path: &Path) -> String {
    let at = |percent: usize| {
        let last = sum.pauses.len().saturating_sub(1);
        sum.pauses.get(last * percent / 100).copied().unwrap_or(0)
    };
    format!(
        "{runs} runs, {} s: {} failovers ({} killed, {} shut down, {} handed over, {} frozen), no \
         answer for p50 {} ms, most {} ms; {} identities, {} operations, {} kills, {} takeovers; \
         {} findings lost inside \
         documented windows, {} violations ({})",
        sum.secs,
        sum.failovers(),
        sum.killed,
        sum.shut_down,
        sum.handed_over,
        sum.frozen,
        at(50),
        at(100),
        sum.identities,
        sum.operations,
        sum.kills,
        sum.takeovers,
        sum.losses,
        sum.violations,
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_runs_add_up() {
        let one = Tally { secs: 600, killed: 2, frozen: 3, pauses: vec![5, 9], ..Tally::default() };
        let read = Tally::read(one.line().trim_end()).unwrap();
        assert_eq!(read, one);
        let none = Tally::default();
        assert_eq!(Tally::read(none.line().trim_end_matches('\n')), Some(none));
        let both = read.and(Tally { killed: 1, pauses: vec![7], ..Tally::default() });
        assert_eq!((both.failovers(), both.pauses), (6, vec![5, 7, 9]));
        assert_eq!(Tally::read("600\tx\t"), None);
    }
}
