// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operators release, resolve, forget and erase records while holders work, die and are taken over:
//! the fencing holds on each store (OPS-3, OPS-4).
//!
//! `RETRYPROOF_RACES=10000` requires that many interventions that race with a holder or a taker.

use crate::{Ran, chaos};

/// How many interventions have to race with a holder or a taker. The tests share the machine; on a
/// dedicated one, there are hundreds.
const RACES: u64 = 5;

fn interfered(name: &str, store: &str, options: &[&str]) -> Ran {
    let asked = std::env::var("RETRYPROOF_RACES").ok();
    let races: u64 = asked.map_or(RACES, |races| races.parse().expect("a number of races"));
    let secs = (races / 40).max(8).to_string();
    // With the memory store, there is only one worker, which gets as many callers and operators as
    // eight workers would have.
    let workers = if store == "memory" { 8 } else { 1 };
    // On SQLite, four operators make several hundred interventions a second. With more, each story
    // has so many that lost answers excuse half of all stories.
    let operators = workers * if races > 1_000 && store != "sqlite" { 16 } else { 4 };
    let (tasks, operators, races) =
        ((workers * 8).to_string(), operators.to_string(), races.to_string());
    let own = [
        "--store",
        store,
        "--secs",
        &secs,
        "--races",
        &races,
        "--tasks",
        &tasks,
        "--operators",
        &operators,
    ];
    let leases = ["--lease-ms", "40..400"];
    chaos(&format!("operators-{name}"), &[&own[..], &leases, options].concat())
}

#[track_caller]
fn holds(store: &str) {
    // Lost answers, of which operators of the memory store get many, would excuse too much: 1.7 and
    // 2.0 % of the operations, of at most 2 %.
    let faults = if store == "memory" { "stop,clock" } else { "kill,stop" };
    let ran = interfered(store, store, &["--faults", faults]);
    ran.holds();
    assert!(ran.count("of them changed a record") > 0, "{}", ran.said);
}

#[track_caller]
fn caught(store: &str) {
    let options = ["--faults", "", "--plant", "unfenced-operator"];
    let ran = interfered(&format!("{store}-unfenced"), store, &options);
    assert_eq!(ran.code, Some(1), "{}", ran.said);
    assert!(ran.broken("OPS-3") > 0, "{}", ran.said);
}

macro_rules! stores {
    ($($store:ident)*) => {$(
        mod $store {
            #[test]
            fn ops_3_ops_4_interventions_race_holders_and_takeovers() {
                super::holds(stringify!($store));
            }

            #[test]
            fn ops_3_interventions_without_fencing_are_caught() {
                super::caught(stringify!($store));
            }
        }
    )*};
}

stores!(memory sqlite postgres mariadb redis);
