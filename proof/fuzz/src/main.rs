// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo run -p fuzz --release -- [TARGET...] [--secs N]`: runs targets in turn until the time is
//! over or each target has reached its goal, and adds the executions to those of earlier runs on
//! the same revision.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use fuzz::{Fuzzer, TARGETS, Target, catch_panics};
use retryproof_core::clock::{Clock as _, SystemClock};

/// How long a target runs before the next one takes its turn. Each turn begins with the corpus
/// alone, so that no run stays with the same inputs.
const TURN: Duration = Duration::from_secs(10);
/// Executions between two reads of the clock.
const BATCH: u64 = 2_000;

fn main() -> ExitCode {
    catch_panics();
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let (mut targets, mut limit) = (Vec::new(), Duration::from_secs(60));
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--secs" {
            limit = Duration::from_secs(arguments.next().ok_or("--secs takes a number")?.parse()?);
            continue;
        }
        let found = TARGETS.iter().find(|target| target.name == argument);
        targets.push(found.copied().ok_or_else(|| format!("no target {argument}"))?);
    }
    if targets.is_empty() {
        targets = TARGETS.to_vec();
    }
    let folder = Path::new("target/fuzz");
    std::fs::create_dir_all(folder)?;
    let git = Command::new("git").args(["describe", "--always", "--dirty"]).output()?;
    let revision = String::from_utf8_lossy(&git.stdout).trim().to_owned();
    let progress = folder.join(format!("progress-{revision}"));
    let mut counts = read(&std::fs::read_to_string(&progress).unwrap_or_default());
    println!("revision {revision}, counts in {}", progress.display());
    let began = SystemClock.now();
    let turn = TURN.min(limit / u32::try_from(targets.len())?);
    while SystemClock.now() - began < limit {
        targets
            .retain(|target| counts.get(target.name).copied().unwrap_or_default() < goal(*target));
        if targets.is_empty() {
            println!("every target has reached its goal");
            break;
        }
        for target in &targets {
            let count = counts.entry(target.name.to_owned()).or_default();
            let (done, found) = take_turn(*target, *count, turn);
            *count += done;
            let (name, goal) = (target.name, target.goal_millions);
            #[expect(clippy::cast_precision_loss, reason = "a rate for a person")]
            let rate = done as f64 / turn.as_secs_f64();
            println!("{name:<14}{count:>14} of {goal} million, {rate:>9.0} a second");
            let lines = counts.iter().map(|(name, count)| format!("{name} {count}\n"));
            std::fs::write(&progress, lines.collect::<String>())?;
            if let Some(found) = found {
                println!("{found}");
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Returns how many executions of the target the proof wants.
const fn goal(target: Target) -> u64 {
    target.goal_millions * 1_000_000
}

fn read(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?))).collect()
}

/// Runs the target for one turn. The number of executions so far is the seed.
fn take_turn(target: Target, seed: u64, turn: Duration) -> (u64, Option<Box<fuzz::Found>>) {
    let (began, mut fuzzer, mut done) = (SystemClock.now(), Fuzzer::new(target, seed), 0);
    let mut found = fuzzer.replay().err();
    while found.is_none() && SystemClock.now() - began < turn {
        found = fuzzer.run(BATCH).err();
        done += BATCH;
    }
    (done, found)
}
