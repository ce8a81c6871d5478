// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance kit against a store with a defect.

use std::panic::{AssertUnwindSafe, catch_unwind};

use defects::Defect;
use retryproof_testkit::conformance::{Case, Time, cases};

use crate::Cell;
use crate::expected::Expected;
use crate::subject;

/// Runs the cases that should catch the defect. Without a defect, runs the cases for all defects.
pub(crate) fn run(store: &str, defect: Option<Defect>) -> Cell {
    let wanted: Vec<&str> = match defect {
        Some(defect) => Expected::cases(defect).to_vec(),
        None => {
            let kept = |defect: &&Defect| {
                Expected::of(**defect, store).exempt(crate::options::Layer::Kit).is_none()
            };
            Defect::ALL.iter().filter(kept).flat_map(|d| Expected::cases(*d)).copied().collect()
        }
    };
    // If the store's server is not running, every case fails, and would seem to have caught the
    // defect.
    if let Err(why) = subject::reach(store) {
        return Cell::Empty(why);
    }
    let failed = wanted.iter().find_map(|name| Some((*name, failure(store, defect, name)?)));
    match (failed, defect) {
        (Some((case, _)), Some(_)) => Cell::Caught(case.to_owned()),
        (None, Some(_)) => Cell::Empty(format!("{} passes", wanted.join(", "))),
        (None, None) => Cell::Caught(format!("green: {} cases", wanted.len())),
        (Some((case, why)), None) => Cell::Empty(format!("{case} fails without a defect: {why}")),
    }
}

/// Runs the case, and returns how it fails, if it does.
fn failure(store: &str, defect: Option<Defect>, name: &str) -> Option<String> {
    let Some(case) = cases().iter().find(|case| case.name == name) else {
        panic!("the kit has no case {name}");
    };
    let time = if store == "memory" { Time::Paused } else { Time::Real };
    // A case that fails panics. Do not print the panic here: the caller of this function prints the
    // panic's message, but only if no defect is planted.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let ended = catch_unwind(AssertUnwindSafe(|| run_case(*case, time, store, defect)));
    std::panic::set_hook(print);
    let why = ended.err()?;
    Some(why.downcast_ref::<String>().cloned().unwrap_or_default())
}

fn run_case(case: Case, time: Time, store: &str, defect: Option<Defect>) {
    let store = store.to_owned();
    retryproof_testkit::conformance::run(case, time, || subject::subject(store, defect));
}
