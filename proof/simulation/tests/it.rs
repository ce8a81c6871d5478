// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the seeds from 1 to 1,000, and checks that they find each planted defect and that a seed
//! repeats its history.

use defects::Defect;
use simulation::{Simulation, silence_planned_panics, sweep};

/// The seeds that the tests run.
const GATE: std::ops::Range<u64> = 1..1_001;

#[test]
fn the_seeds_of_the_gate_break_no_rule_and_show_something() {
    silence_planned_panics();
    let totals = sweep(GATE, None).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{totals}");
    for (name, least) in [
        ("operations without an answer", 20_000),
        ("replays", 20_000),
        ("waits ended by completion", 1_500),
        ("in flight", 2_000),
        ("takeovers", 250),
        ("stale refusals", 500),
        ("tombstones", 50),
        ("crashes", 1_000),
    ] {
        let count = totals.counts.iter().find(|(counted, _)| *counted == name);
        assert!(count.is_some_and(|(_, count)| *count >= least), "{name}: {totals}");
    }
}

#[test]
fn each_planted_defect_is_caught_within_the_seeds_of_the_gate() {
    silence_planned_panics();
    let mut otherwise = Vec::new();
    for plant in Defect::ALL.iter().copied() {
        let rules: &[&str] = match plant {
            Defect::NoWakeUp | Defect::NoPoll | Defect::Deaf => &["L2", "L3"],
            Defect::NoHeartbeat | Defect::LateHeartbeat => &["L4", "S2"],
            Defect::TtlFromAcquire => &["S4", "S6"],
            Defect::FingerprintDropped => &["S5", "S11"],
            Defect::AlteredReplay => &["S7"],
            Defect::TimeFenced => &["S3"],
            Defect::EarlyTakeover | Defect::GetThenSet => &["S1", "S2"],
            Defect::NoOwnerCheck => &["S1", "S3", "S4"],
            Defect::RepeatedToken => &["S2", "S9"],
            Defect::EarlyPurge => &["S2", "S3", "S18"],
            Defect::LostReplyRefused => &["S19"],
        };
        match sweep(GATE, Some(plant)) {
            Err(failure) if rules.contains(&failure.rule) => {
                println!("{}: {} at seed {}", plant.name(), failure.rule, failure.seed);
            }
            Err(failure) => otherwise.push(format!("{}: {failure}", plant.name())),
            Ok(_) => otherwise.push(format!("{} was not caught", plant.name())),
        }
    }
    assert!(otherwise.is_empty(), "{}", otherwise.join("\n"));
}

#[test]
fn a_seed_repeats_its_history() {
    silence_planned_panics();
    for seed in 1..40 {
        let (first, again) = (Simulation::run(seed, None), Simulation::run(seed, None));
        let differ = first.events.iter().zip(&again.events).position(|(one, other)| one != other);
        if let Some(at) = differ {
            panic!("seed {seed}, event {at}: {:?}, {:?}", first.events[at], again.events[at]);
        }
        assert_eq!(first, again, "seed {seed}");
    }
    assert_ne!(Simulation::run(1, None).digest(), Simulation::run(2, None).digest());
}

/// The history does not depend on the order in hash tables, whose random seeds differ in each
/// process.
#[test]
fn a_seed_repeats_its_history_in_another_process() {
    let folder = std::env::temp_dir().join(format!("simulation-{}", std::process::id()));
    let digest = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_simulation"));
        let output = command.args(["--seed", "7", "--out"]).arg(&folder).output();
        let text = String::from_utf8(output.expect("the command should run").stdout);
        let text = text.expect("the report should be text");
        text.lines().rfind(|line| line.starts_with("digest")).map(str::to_owned)
    };
    let (first, again) = (digest(), digest());
    let _ = std::fs::remove_dir_all(&folder);
    assert!(first.is_some(), "no digest");
    assert_eq!(first, again);
}
