// SPDX-License-Identifier: MIT OR Apache-2.0
//! The correct protocol: nothing is wrong in any state, every sight is reachable, and every call
//! ends.
//!
//! Each run is exhaustive within its budgets, and time has no bound. Together they have some 4
//! million states, not counting those that differ only in names; with `MODEL_CLIENTS=4 cargo test
//! -p model --release`, they have 9 million.

use model::{Bounds, Budget, CLIENTS, Protocol, Sight, Wakeup};

use crate::checker::{exhaust, sights_without};

fn holds(bounds: Bounds, unreachable: &[Sight]) {
    let expected = sights_without(unreachable);
    let found = exhaust(Protocol::new(bounds), expected);
    println!("{} states, names aside, in {bounds:?}", found.states);
    for wrong in found.violated() {
        println!("{wrong}: {:#?}", found.paths[wrong]);
    }
    assert_eq!(found.violated(), Vec::<&str>::new());
    assert_eq!(found.reached(), expected.iter().map(Sight::name).collect::<Vec<_>>());
}

fn budget(calls: u8, strangers: u8, tombstones: u8, crashes: u8, losses: u8) -> Budget {
    Budget { calls, strangers, tombstones, crashes, losses }
}

/// Returns bounds with three clients, or with `MODEL_CLIENTS`.
fn several() -> Bounds {
    let asked = std::env::var("MODEL_CLIENTS").ok().map(|number| number.parse::<u8>().unwrap());
    let clients = asked.unwrap_or(3);
    assert!((2..=CLIENTS).contains(&usize::from(clients)), "MODEL_CLIENTS must be 2 to {CLIENTS}");
    Bounds::new(clients)
}

const ONE_FINGERPRINT: [Sight; 2] = [Sight::Mismatch, Sight::MismatchAfterWait];

// This test checks every property and sight of the model, among them ACQ-1..7, ACQ-9..12, RUN-3..6,
// CMP-1..6, FP-1, FP-2.
#[test]
fn acq_2_cmp_2_two_clients_with_everything() {
    holds(Bounds::new(2), &[Sight::WakePassedOn, Sight::Returned]);
}

#[test]
fn acq_2_cmp_2_three_processes_one_dies_one_message_lost() {
    let absent = [Sight::WakePassedOn, Sight::Returned, Sight::NotReplayable];
    holds(
        Bounds { budget: budget(4, 0, 0, 1, 1), ..several() },
        &[&absent[..], &ONE_FINGERPRINT].concat(),
    );
}

#[test]
fn fp_1_fp_2_three_processes_with_two_fingerprints() {
    let absent = [Sight::WakePassedOn, Sight::Returned, Sight::NotReplayable];
    holds(Bounds { budget: budget(3, 1, 0, 0, 1), ..Bounds::new(3) }, &absent);
}

#[test]
fn acq_3_acq_5_three_callers_of_one_process() {
    let bounds = Bounds { wakeup: Wakeup::One, budget: budget(4, 0, 0, 0, 1), ..several() };
    holds(bounds, &[&[Sight::Returned, Sight::NotReplayable][..], &ONE_FINGERPRINT].concat());
}

#[test]
fn acq_3_fp_2_callers_of_one_process_with_two_fingerprints() {
    let bounds = Bounds { wakeup: Wakeup::One, budget: budget(3, 1, 0, 0, 1), ..Bounds::new(3) };
    holds(bounds, &[Sight::Returned, Sight::NotReplayable]);
}

#[test]
fn acq_2_four_clients_nothing_lost() {
    let absent = [
        Sight::WakePassedOn,
        Sight::Returned,
        Sight::NotReplayable,
        Sight::Regrant,
        Sight::Confirmed,
        Sight::Unrecorded,
        Sight::RecordedLater,
        Sight::StaleArrived,
    ];
    let bounds = Bounds { budget: budget(4, 0, 0, 0, 0), ..Bounds::new(4) };
    holds(bounds, &[&absent[..], &ONE_FINGERPRINT].concat());
}

/// A lease ends before, during and after a wait, and a ttl ends before the next call.
#[test]
fn acq_2_acq_6_cmp_6_other_lengths() {
    for (lease, ttl, wait) in [(1, 1, 1), (1, 3, 3), (2, 1, 2), (3, 4, 3), (3, 2, 1)] {
        let bounds = Bounds { lease, ttl, wait, budget: budget(4, 0, 0, 1, 1), ..Bounds::new(2) };
        let absent = [Sight::WakePassedOn, Sight::Returned, Sight::NotReplayable];
        holds(bounds, &[&absent[..], &ONE_FINGERPRINT].concat());
    }
}

/// CTX-2: a wait of zero looks once.
#[test]
fn acq_6_nobody_waits() {
    let bounds = Bounds { wait: 0, budget: budget(4, 1, 0, 1, 1), ..Bounds::new(2) };
    let absent = [
        Sight::WakePassedOn,
        Sight::Returned,
        Sight::NotReplayable,
        Sight::TakeoverInWait,
        Sight::ReleasedToWaiter,
        Sight::ReplayAfterWait,
        Sight::MismatchAfterWait,
    ];
    holds(bounds, &absent);
}

#[test]
fn id_1_two_identities() {
    let absent = [
        Sight::WakePassedOn,
        Sight::Returned,
        Sight::NotReplayable,
        Sight::Regrant,
        Sight::Confirmed,
        Sight::Unrecorded,
        Sight::RecordedLater,
        Sight::StaleArrived,
    ];
    let bounds = Bounds { identities: 2, budget: budget(4, 0, 0, 0, 0), ..Bounds::new(2) };
    holds(bounds, &[&absent[..], &ONE_FINGERPRINT].concat());
}

/// S14: one client's clock is a whole lease ahead.
#[test]
fn acq_7_a_fast_clock_changes_nothing() {
    let bounds = Bounds { skew: 2, budget: budget(4, 0, 0, 1, 1), ..Bounds::new(2) };
    let absent = [Sight::WakePassedOn, Sight::Returned, Sight::NotReplayable];
    holds(bounds, &[&absent[..], &ONE_FINGERPRINT].concat());
}

/// A lost acquire arrives late. It may give the lease back to an owner that had lost it. That
/// owner's completion then counts, because completions are fenced by owner. An epoch still has one
/// value, and nothing runs within the value's ttl.
#[test]
fn acq_9_acq_11_late_acquires_do_no_harm() {
    let bounds = Bounds { late_acquires: true, budget: budget(4, 0, 0, 0, 2), ..Bounds::new(2) };
    holds(bounds, &[&[Sight::WakePassedOn, Sight::NotReplayable][..], &ONE_FINGERPRINT].concat());
}
