// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bite`: plants each defect in each store, runs every layer of the proof against it,
//! and prints which test caught it. A defect that no test of a layer catches fails the run, and so
//! does a layer that is not green without a defect.

mod expected;
mod kill;
mod kit;
mod options;
mod subject;

use std::process::ExitCode;

use defects::Defect;
use expected::Expected;
use options::{Layer, Options, USAGE};

/// The result of one cell of the table.
enum Cell {
    /// The test or the rule that caught the defect; without a defect, what ran.
    Caught(String),
    /// Why the layer cannot catch the defect.
    Exempt(&'static str),
    /// Why the cell fails: no test caught the defect, or a test failed without a defect.
    Empty(String),
}

fn main() -> ExitCode {
    if std::env::args().any(|option| option == "--help" || option == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    simulation::silence_planned_panics();
    let mut empty = 0;
    println!("{:<21}{:<10}{:<12}caught by", "defect", "store", "layer");
    for store in &options.stores {
        for layer in &options.layers {
            if *layer == Layer::Simulation && store != "memory" {
                continue;
            }
            for defect in std::iter::once(None).chain(options.defects.iter().copied().map(Some)) {
                let cell = cell(&options, store, *layer, defect);
                let name = defect.map_or("none", Defect::name);
                let what = match cell {
                    Cell::Caught(what) => what,
                    Cell::Exempt(why) => format!("- {why}"),
                    Cell::Empty(why) => {
                        empty += 1;
                        format!("NOTHING: {why}")
                    }
                };
                println!("{name:<21}{store:<10}{:<12}{what}", layer.name());
            }
        }
    }
    subject::clean_up();
    println!("\n{empty} empty cells");
    ExitCode::from(u8::from(empty > 0))
}

fn cell(options: &Options, store: &str, layer: Layer, defect: Option<Defect>) -> Cell {
    let expected = defect.map(|defect| Expected::of(defect, store));
    if let Some(Some(why)) = expected.as_ref().map(|expected| expected.exempt(layer)) {
        return Cell::Exempt(why);
    }
    match layer {
        Layer::Kit => kit::run(store, defect),
        Layer::Kill => kill::run(options, store, defect),
        Layer::Simulation => simulated(defect),
    }
}

/// Runs the simulation with the seeds that its tests use.
fn simulated(defect: Option<Defect>) -> Cell {
    match (simulation::sweep(1..1_001, defect), defect) {
        (Err(failure), Some(_)) => {
            Cell::Caught(format!("{} at seed {}", failure.rule, failure.seed))
        }
        (Ok(totals), None) => Cell::Caught(format!("green: {} seeds", totals.seeds)),
        (Err(failure), None) => Cell::Empty(format!("{} at seed {}", failure.rule, failure.seed)),
        (Ok(totals), Some(_)) => Cell::Empty(format!("{} seeds are green", totals.seeds)),
    }
}
