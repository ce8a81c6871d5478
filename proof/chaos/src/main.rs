// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kill tests: several processes use one store while all kinds of faults are made.
//!
//! The program that is started is the supervisor. It starts workers (itself, in another role),
//! which run the real engine on the real store and write down every call. It makes faults, but only
//! in its own processes, connections and servers. At the end, it lets everything settle and judges
//! the history. `history DIR` judges a history again.

mod act;
mod address;
mod aim;
mod call;
mod client;
mod clocks;
mod engine;
mod erased;
mod forms;
mod full;
mod jumps;
mod log;
mod mono;
mod nemesis;
mod open;
mod operator;
mod plan;
mod planted;
mod power;
mod preload;
mod proxy;
mod random;
mod recording;
mod resource;
mod sealed;
mod server;
mod settle;
mod supervisor;
mod tally;
mod worker;
mod workers;
mod world;

use std::process::ExitCode;

use plan::{Plan, Role, USAGE};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let plan = match Plan::parse(args.into_iter()) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = match plan.role {
        Role::Supervisor => match plan.failovers {
            Some(failovers) => tally::run(&plan, failovers),
            None => supervisor::make(plan).map(|ended| ended.green),
        },
        Role::Eraser => erased::run(&plan),
        Role::Sealer => sealed::run(&plan),
        Role::Full => full::run(&plan),
        Role::FullInside => full::inside(&plan),
        Role::Jumps => jumps::run(&plan),
        Role::JumpsInside => jumps::inside(&plan),
        Role::PowerLoss => power::run(&plan),
        Role::PowerCaller => power::call(&plan).map(|()| true),
        Role::Worker | Role::Settler => worker::run(&plan).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::from(2)
        }
    }
}
