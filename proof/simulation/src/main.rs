// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo run -p simulation --release -- --seeds 100000`: runs many seeds, and continues where the
//! last run at the same revision ended. `--seed N` replays one.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use defects::Defect;
use history::{read, report};
use retryproof::clock::{Clock as _, SystemClock};
use simulation::{Simulation, Totals, silence_planned_panics, sweep};

/// Seeds between two lines of progress.
const CHUNK: u64 = 1_000;

const USAGE: &str = "usage: simulation [--seeds N] [--seed N [--plant NAME]] [--out FOLDER]";

fn main() -> ExitCode {
    silence_planned_panics();
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("simulation: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let (mut seeds, mut seed, mut plant) = (100_000, None, None);
    let mut out = PathBuf::from("target/simulation");
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--seeds" => seeds = value.parse()?,
            "--seed" => seed = Some(value.parse()?),
            "--plant" => plant = Some(Defect::named(&value).ok_or("no such defect")?),
            "--out" => out = value.into(),
            _ => return Err(USAGE.into()),
        }
    }
    std::fs::create_dir_all(&out)?;
    match seed {
        Some(seed) => replay(seed, plant, &out),
        None => go_on(seeds, &out),
    }
}

/// Runs one seed, keeps its history and prints the judge's report.
fn replay(
    seed: u64,
    plant: Option<Defect>,
    out: &Path,
) -> Result<bool, Box<dyn std::error::Error>> {
    let simulation = Simulation::run(seed, plant);
    let folder = out.join(format!("seed-{seed}"));
    simulation.save(&folder)?;
    let (run, lines) = read(&folder)?;
    let judgement = history::judge(&run);
    println!("{}", report(&run, &judgement, &lines));
    println!("history in {}", folder.display());
    println!("digest {:016x}", simulation.digest());
    Ok(judgement.violations.is_empty())
}

/// Runs the seeds that earlier runs at this revision did not reach.
fn go_on(seeds: u64, out: &Path) -> Result<bool, Box<dyn std::error::Error>> {
    let git = Command::new("git").args(["describe", "--always", "--dirty"]).output()?;
    let revision = String::from_utf8_lossy(&git.stdout).trim().to_owned();
    let progress = out.join(format!("progress-{revision}"));
    let mut done: u64 = match std::fs::read_to_string(&progress) {
        Ok(text) => text.trim().parse()?,
        Err(_) => 0,
    };
    println!("revision {revision}: {done} seeds done before");
    let (began, first, mut totals) = (SystemClock.now(), done, Totals::default());
    while done < seeds {
        let next = seeds.min(done + CHUNK);
        match sweep(done + 1..next + 1, None) {
            Ok(more) => totals.add(&more),
            Err(failure) => {
                println!("{failure}");
                return Ok(false);
            }
        }
        done = next;
        std::fs::write(&progress, done.to_string())?;
        let took = SystemClock.now().saturating_duration_since(began).as_secs_f64();
        println!("{done} of {seeds} seeds, {:.0} a second", (done - first) as f64 / took);
    }
    println!("0 violations in {totals}");
    Ok(true)
}
