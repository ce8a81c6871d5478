// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bounds of L1 to L4, each tested on both sides.

use history::{Manifest, Run, judge};

use crate::script::{broken, manifest, run_of};

/// The longest poll in the histories, plus the delay that a timer may have.
const BOUND: u64 = 50 + 10;

/// The bound for half of the notified waits: that of the manifest, plus the median time of an
/// answer in [`completed`].
const WAKE: u64 = 5 + 2;

/// Returns twenty identities: `late` of them have a wait that ends `by` ms too late, and the others
/// have one that ends at once.
fn twenty(late: usize, by: u64, story: impl Fn(u64) -> String) -> String {
    let named = |(at, script): (usize, String)| {
        let line = |line: &str| format!("{} key=k{at}", line.trim().replace("cN", &call(at)));
        let line = |text: &str| line(text).replace("call=N", &format!("call={}", at + 1));
        script.lines().filter(|line| !line.trim().is_empty()).map(line).collect::<Vec<_>>()
    };
    let scripts = (0..20).map(|at| story(if at < late { by } else { 0 })).enumerate();
    scripts.flat_map(named).collect::<Vec<_>>().join("\n")
}

fn call(at: usize) -> String {
    format!("c{}", at + 1)
}

fn judged(manifest: Manifest, script: &str) -> Vec<&'static str> {
    let run: Run = run_of(manifest, script);
    judge(&run).violations.iter().map(|violation| violation.rule).collect()
}

/// Returns a wait that a completion ends, and whose answer comes `late` ms after the completion.
/// The store's calls do not count.
fn completed(waiter: &str, late: u64) -> String {
    let (asked, end) = (22 + late, 24 + late);
    format!(
        "0-2 acquire A granted 1 lease=1000
         {waiter} 5-{end} respond cN replayed wait=2000 v=7 of=1
         {waiter} 5-6 acquire B busy 1 left=995 call=N
         20-22 complete A done v=7
         {waiter} {asked}-{end} acquire C complete v=7 of=1 call=N"
    )
}

#[test]
fn l2_a_tenth_of_the_waits_may_be_late() {
    let script = |late, by| twenty(late, by, |by| completed("p2", by));
    assert!(broken(&script(20, BOUND)).is_empty());
    assert!(broken(&script(2, BOUND + 1)).is_empty());
    assert_eq!(broken(&script(3, BOUND + 1)), ["L2"]);
    // On a shared machine, two more waits may be late.
    let shared = || Manifest { slack_ms: 8_000, ..manifest() };
    assert!(judged(shared(), &script(4, BOUND + 1)).is_empty());
    assert_eq!(judged(shared(), &script(5, BOUND + 1)), ["L2"]);
}

#[test]
fn l2_the_bound_follows_from_the_poll() {
    let script = |by| twenty(20, by, |by| completed("p2", by));
    for poll_ms in [0, 24, 48] {
        let run = || Manifest { poll_ms, ..manifest() };
        assert!(judged(run(), &script(poll_ms + 10)).is_empty(), "{poll_ms}");
        assert_eq!(judged(run(), &script(poll_ms + 11)), ["L2"], "{poll_ms}");
    }
}

#[test]
fn l2_half_of_the_waiters_of_a_process_are_woken_and_need_no_poll() {
    let script = |late, by| twenty(late, by, |by| completed("p1", by));
    assert!(broken(&script(20, WAKE)).is_empty());
    assert!(broken(&script(10, WAKE + 1)).is_empty());
    assert_eq!(broken(&script(11, WAKE + 1)), ["L2"]);
    // For waiters in another process, this bound applies only if the store notifies them.
    let other = twenty(20, WAKE + 1, |by| completed("p2", by));
    assert!(broken(&other).is_empty());
    assert_eq!(judged(Manifest { pushes: true, ..manifest() }, &other), ["L2"]);
    // Waiters that are woken in their own process do not hide that no wake-up reaches another
    // process.
    let mixed = twenty(10, WAKE + 1, |by| completed(if by > 0 { "p2" } else { "p1" }, by));
    assert!(broken(&mixed).is_empty());
    assert_eq!(judged(Manifest { pushes: true, ..manifest() }, &mixed), ["L2"]);
}

#[test]
fn l2_three_of_four_waiters_are_woken_within_one_and_a_half_times_the_bound() {
    let script = |late, by| twenty(late, by, |by| completed("p1", by));
    assert!(broken(&script(5, 4 * WAKE)).is_empty());
    assert!(broken(&script(6, WAKE * 3 / 2)).is_empty());
    assert_eq!(broken(&script(6, WAKE * 3 / 2 + 1)), ["L2"]);
}

#[test]
fn l2_a_busy_machine_delays_notifications_like_answers() {
    // Each answer takes 20 ms, on a machine that is too busy for less.
    let slow = |late: u64| {
        let (asked, end) = (60 + late, 80 + late);
        format!(
            "0-20 acquire A granted 1 lease=1000
             p1 5-{end} respond cN replayed wait=2000 v=7 of=1
             p1 10-30 acquire B busy 1 left=990 call=N
             40-60 complete A done v=7
             p1 {asked}-{end} acquire C complete v=7 of=1 call=N"
        )
    };
    assert!(broken(&twenty(20, 5 + 20, slow)).is_empty());
    assert_eq!(broken(&twenty(11, 5 + 20 + 1, slow)), ["L2"]);
}

#[test]
fn l2_a_fault_of_the_store_or_of_the_holder_excuses_a_wait() {
    let script = |fault: &str| {
        format!("{}\n12-30 fault {fault}", twenty(20, BOUND + 1, |by| completed("p2", by)))
    };
    assert!(broken(&script("restart")).is_empty());
    assert!(broken(&script("kill victim=1")).is_empty());
    assert_eq!(broken(&script("kill victim=3")), ["L2"]);
    // The time in which the waiter's process was stopped does not count, but the rest of the wait
    // does.
    let paused = twenty(20, 200 + BOUND, |by| completed("p2", by));
    let pause = |ms: u64| {
        let mut run = run_of(manifest(), &paused);
        let mut lag = history::Event::new((2, 1), 0, history::Fun::Lag, history::Phase::Ok, 0);
        (lag.since_ns, lag.mono_ns) = (Some(30_000_000), (30 + ms) * 1_000_000);
        run.take(lag, history::Line::default()).unwrap();
        judge(&run).violations.len()
    };
    assert_eq!((pause(200), pause(199)), (0, 1));
}

#[test]
fn l1_a_wait_ends_when_its_time_is_over() {
    let story = |late: u64| {
        let (asked, end) = (106 + late, 107 + late);
        format!(
            "0-2 acquire A granted 1 lease=60000
             p2 5-{end} respond cN in_flight wait=100
             p2 5-6 acquire B busy 1 call=N
             p2 {asked}-{end} acquire C busy 1 call=N
             900-901 complete A done v=7"
        )
    };
    assert!(broken(&twenty(20, BOUND, story)).is_empty());
    assert!(broken(&twenty(2, BOUND + 1, story)).is_empty());
    assert_eq!(broken(&twenty(3, BOUND + 1, story)), ["L1"]);
}

#[test]
fn l3_a_waiter_takes_over_when_the_lease_ends() {
    let story = |late: u64| {
        let (asked, end) = (102 + late, 103 + late);
        format!(
            "0-2 acquire A granted 1 lease=100
             p2 5-? respond cN wait=2000
             p2 5-6 acquire B busy 1 left=95 call=N
             p2 {asked}-{end} acquire C took_over 2 call=N"
        )
    };
    assert!(broken(&twenty(20, BOUND, story)).is_empty());
    assert!(broken(&twenty(2, BOUND + 1, story)).is_empty());
    assert_eq!(broken(&twenty(3, BOUND + 1, story)), ["L3"]);
}

#[test]
fn l3_a_waiter_is_granted_what_a_holder_released() {
    let story = |late: u64| {
        let (asked, end) = (22 + late, 23 + late);
        format!(
            "0-2 acquire A granted 1 lease=1000
             p2 5-? respond cN wait=2000
             p2 5-6 acquire B busy 1 left=995 call=N
             20-22 release A done
             p2 {asked}-{end} acquire C granted 2 call=N"
        )
    };
    assert!(broken(&twenty(20, BOUND, story)).is_empty());
    assert_eq!(broken(&twenty(3, BOUND + 1, story)), ["L3"]);
}

/// Returns an action of 500 ms under a lease of `lease` ms, with these heartbeats and a fault.
fn held(lease: u64, beats: &[&str], fault: &str) -> String {
    let beats: String = beats
        .iter()
        .map(|beat| {
            format!("\n{beat} extend A done lease={lease}").replace("? extend A done", "? extend A")
        })
        .collect();
    format!(
        "0-510 respond c1 executed recorded=yes v=7
         0-2 acquire A granted 1 lease={lease} call=1
         2 told 1 granted
         2 act_start c1 1
         500 act_end c1 1 returned
         501-502 complete A done v=7
         503 told 1 completed{beats}\n{fault}"
    )
}

#[test]
fn l4_a_lease_is_prolonged_before_it_ends_although_nobody_takes_over() {
    let in_time = ["100-101", "200-201", "300-301", "400-401"];
    assert!(broken(&held(200, &in_time, "")).is_empty());
    assert_eq!(broken(&held(200, &[], "")), ["L4"]);
    assert_eq!(broken(&held(200, &in_time[..1], "")), ["L4"]);
    // The lease ends at 202 ms, plus or minus what a store may round.
    assert!(broken(&held(200, &["204-205", "380-381"], "")).is_empty());
    assert_eq!(broken(&held(200, &["205-206", "380-381"], "")), ["L4"]);
    // A heartbeat without an answer may have arrived.
    assert!(broken(&held(200, &["100-?"], "")).is_empty());
}

#[test]
fn l4_judges_what_nothing_disturbed() {
    assert!(broken(&held(200, &[], "50-60 fault stop victim=1")).is_empty());
    assert!(broken(&held(200, &[], "50-60 fault restart")).is_empty());
    assert_eq!(broken(&held(200, &[], "50-60 fault stop victim=2")), ["L4"]);
    assert_eq!(broken(&held(200, &[], "300-310 fault stop victim=1")), ["L4"], "too late");
    // A slow answer of the store excuses the loss of the lease.
    assert!(broken(&held(200, &[], "50-71 look - busy 1 left=150")).is_empty());
    assert_eq!(broken(&held(200, &[], "50-70 look - busy 1 left=150")), ["L4"]);
    // Shorter leases are not judged on a shared machine.
    assert!(broken(&held(99, &[], "")).is_empty());
    assert_eq!(broken(&held(100, &[], "")), ["L4"]);
}
