// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`report`]: a judgement as a readable text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::excuse::Share;
use crate::judge::{Judgement, Violation};
use crate::read::Lines;
use crate::rules;
use crate::rules::pace::MEDIAN_OF;
use crate::story::Run;

/// How many violations are shown in full. The others are only counted.
const SHOWN: usize = 12;
/// How many lines are shown for one violation.
const LINES: usize = 16;

/// Writes the counts, the violations with the events that show them, and the verdict.
#[must_use]
pub fn report(run: &Run, judgement: &Judgement, lines: &Lines) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, run, judgement, lines);
    text
}

fn write(text: &mut String, run: &Run, judgement: &Judgement, lines: &Lines) -> std::fmt::Result {
    let (manifest, counts) = (&run.manifest, &judgement.counts);
    writeln!(
        text,
        "history of {}: {} for {} s, {} workers, leases of {} to {} ms, faults {}, seed {}, revision {}",
        manifest.run,
        manifest.store,
        manifest.secs,
        manifest.workers,
        manifest.lease_ms.0,
        manifest.lease_ms.1,
        if manifest.faults.is_empty() { "none".into() } else { manifest.faults.join(",") },
        manifest.seed,
        manifest.revision,
    )?;
    if let Some(planted) = &manifest.planted {
        writeln!(text, "planted defect: {planted}")?;
    }
    writeln!(text)?;
    for (name, count) in [
        ("events", counts.events),
        ("identities", counts.identities),
        ("calls of the engine", counts.calls),
        ("operations on the store", counts.operations),
        ("  of them info (outcome unknown)", counts.info),
        ("  failed for certain", counts.failed),
        ("  overlapping a fault", counts.overlapping),
        ("kills (SIGKILL)", counts.kills),
        ("pauses (SIGSTOP)", counts.pauses),
        ("connections cut or delayed", counts.cuts),
        ("one-way connections", counts.one_way),
        ("half-open connections", counts.half_open),
        ("store restarts (kill -9)", counts.restarts),
        ("orderly restarts", counts.shutdowns),
        ("fail-overs", counts.failovers),
        ("fail-overs by hand", counts.handovers),
        ("fail-overs of a frozen primary", counts.freezes),
        ("moves of slots, per identity", counts.moved),
        ("  interrupted by a fail-over", counts.interrupted),
        ("times without a server", counts.downs),
        ("  other faults meanwhile", counts.struck_while_down),
        ("processes with a wrong clock", counts.skewed),
        ("moves of a running process's clock", counts.leaps),
        ("  seen by a process", counts.leaps_seen),
        ("moves of the store's clock", counts.jumps),
        ("  answers that only they explain", counts.explained),
        ("  identities whose tokens fell", counts.rewound),
        ("workers with several threads", counts.threaded),
        ("workers with one thread", counts.single),
        ("acquires answered at once", counts.at_once),
        ("  of them without a future", counts.in_place),
        ("grants", counts.grants),
        ("  of them takeovers", counts.takeovers),
        ("stale refusals", counts.stale_refusals),
        ("completions", counts.completions),
        ("  of them tombstones", counts.tombstones),
        ("calls executed", counts.executed),
        ("calls replayed", counts.replays),
        ("  of them waits ended by completion", counts.waits_ended),
        ("calls in flight", counts.in_flight),
        ("calls with another fingerprint", counts.mismatches),
        ("interventions of operators", counts.interventions),
        ("  of them changed a record", counts.applied),
        ("  met a holder or a taker", counts.races),
        ("effects outside of the store", counts.effects),
        ("  refused there for an older token", counts.effects_refused),
    ] {
        writeln!(text, "  {name:<42}{count:>12}")?;
    }
    writeln!(text, "  {:<42}p50 {} us", "answers of the store", run.usual_answer() / 1_000)?;
    for (name, wakes) in
        ["completion to waiter, same process", "completion to waiter, another process"]
            .iter()
            .zip(&counts.wakes)
    {
        if !wakes.is_empty() {
            let at = |percent: usize| wakes[(wakes.len() - 1) * percent / 100] / 1_000;
            writeln!(
                text,
                "  {name:<42}p50 {} us, p99 {} us, most {} us of {} (without pauses of the waiter)",
                at(50),
                at(99),
                at(100),
                wakes.len()
            )?;
        }
    }
    outages(text, run, judgement)?;
    writeln!(
        text,
        "\nminimum counts (for 600 s on a dedicated machine, times {}/600, times a share of {}):",
        manifest.secs, manifest.share
    )?;
    for count in counts.list() {
        let mark = if count.have < count.least { "  TOO FEW" } else { "" };
        writeln!(text, "  {:<48}{:>10} of {}{mark}", count.name, count.have, count.least)?;
    }
    writeln!(text, "\ninvariants:")?;
    for (id, what) in rules::RULES.iter().map(|(id, what, _)| (*id, *what)).chain([rules::S18]) {
        let broken = judgement.violations.iter().filter(|violation| violation.rule == id).count();
        let few = |at: usize| counts.undisturbed[at] < MEDIAN_OF as u64;
        let judged = match id {
            "L2" if few(0) => "median within a process not judged: too few wake-ups",
            "L2" if few(1) && manifest.pushes => {
                "median across processes not judged: too few wake-ups"
            }
            "ACQ-10" if manifest.guard == "none" => "not judged: no effects",
            "OPS-3" | "OPS-4" if counts.interventions == 0 => "not judged: no operators",
            _ => "",
        };
        let said =
            if broken == 0 { "0 violations".to_owned() } else { format!("{broken} VIOLATIONS") };
        writeln!(text, "  {id:<7}{what:<62}{said} {judged}")?;
    }
    excuses(text, judgement)?;
    if !judgement.losses.is_empty() {
        let stories: BTreeSet<_> = judgement.losses.iter().map(|loss| loss.story).collect();
        writeln!(
            text,
            "\nlost inside documented windows: {} findings of {} identities",
            judgement.losses.len(),
            stories.len()
        )?;
        show(text, run, &judgement.losses, lines, 3)?;
    }
    show(text, run, &judgement.violations, lines, SHOWN)?;
    let verdict = if !judgement.violations.is_empty() {
        format!("VIOLATED: {} violations", judgement.violations.len())
    } else if !judgement.missing().is_empty() {
        "VOID: no rule was violated, but too little happened for a valid result".into()
    } else if !judgement.too_much().is_empty() {
        "VOID: no rule was violated, but too much is excused for a valid result".into()
    } else {
        "0 violations".into()
    };
    writeln!(text, "\n{verdict}")
}

/// Writes how long the store did not answer at outages of its server, and in which time before a
/// failover an acknowledged write may have been lost.
fn outages(text: &mut String, run: &Run, judgement: &Judgement) -> std::fmt::Result {
    let pauses = &judgement.pauses;
    if !pauses.is_empty() {
        let at = |percent: usize| pauses[(pauses.len() - 1) * percent / 100] / 1_000_000;
        writeln!(
            text,
            "  {:<42}p50 {} ms, most {} ms of {}",
            "no answer of the store at an outage",
            at(50),
            at(100),
            pauses.len()
        )?;
    }
    let windows = run.faults.iter().filter(|fault| fault.is_loss());
    let mut windows: Vec<u64> =
        windows.filter_map(|fault| Some((fault.to? - fault.from) / 1_000_000)).collect();
    windows.sort_unstable();
    if let (Some(middle), Some(most)) = (windows.get(windows.len() / 2), windows.last()) {
        writeln!(
            text,
            "  {:<42}p50 {middle} ms, most {most} ms of {}",
            "time from which a failover may lose writes",
            windows.len()
        )?;
    }
    Ok(())
}

/// Writes the table of excuses.
fn excuses(text: &mut String, judgement: &Judgement) -> std::fmt::Result {
    writeln!(text, "\nexcuses, with the stories and operations that they covered:")?;
    for share in &judgement.shares {
        let Share { row, covered, of, most } = share;
        let part = |covered: u64, of: u64, most: u64| {
            let per_mille = covered * 1_000 / of.max(1);
            format!("{covered:>8} {:>3}.{} % of {most} %", per_mille / 10, per_mille % 10)
        };
        let (stories, operations) = (part(covered.0, of.0, most.0), part(covered.1, of.1, most.1));
        let mark = if share.is_too_large() { "  TOO MUCH" } else { "" };
        writeln!(text, "  {:<15}{stories}{operations}  {}{mark}", row.name, row.rules)?;
    }
    Ok(())
}

fn show(
    text: &mut String,
    run: &Run,
    violations: &[Violation],
    lines: &Lines,
    most: usize,
) -> std::fmt::Result {
    for violation in violations.iter().take(most) {
        let story = violation.story.and_then(|at| run.stories.get(at));
        let name =
            story.map_or_else(String::new, |story| format!("{:?} {:?}", story.scope, story.key));
        writeln!(text, "\n{} {name}: {}", violation.rule, violation.text)?;
        for line in violation.lines.iter().take(LINES) {
            if let Some(line) = lines.text(*line) {
                writeln!(text, "    {line}")?;
            }
        }
    }
    match violations.len().saturating_sub(most) {
        0 => Ok(()),
        more => writeln!(text, "\nand {more} more"),
    }
}
