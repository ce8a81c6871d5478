// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failovers that may lose acknowledged writes, in a time that the run knows.

use crate::script::{broken, run};

/// Returns the number of findings that a loss explains.
fn losses(script: &str) -> usize {
    history::judge(&run(script)).losses.len()
}

/// A result that is acknowledged at 12 ms, and gone long after the failover.
const LATE: &str = "0-2 acquire A granted 1
    10-12 complete A done v=7
    11-40 fault loss lossy
    15-90 fault failover
    5000-5001 acquire B granted 2";

#[test]
fn s6_a_write_that_a_failover_loses_may_be_missed_at_any_later_time() {
    assert!(broken(LATE).is_empty());
    assert_eq!(losses(LATE), 1);
    // The answer may arrive after the death of the server that sent it.
    assert!(broken(&LATE.replace("10-12", "10-60")).is_empty());
}

#[test]
fn s6_a_write_that_was_acknowledged_before_the_window_must_not_be_lost() {
    for (from, to) in [("11-40", "13-40"), ("10-12 complete", "41-42 complete")] {
        let outside = LATE.replace(from, to);
        assert_eq!((broken(&outside), losses(&outside)), (vec!["S6"], 0), "{outside}");
    }
    // Without a loss, the same failover must keep everything.
    assert_eq!(broken(&LATE.replace("11-40 fault loss lossy", "")), ["S6"]);
}

#[test]
fn s6_a_call_in_the_window_does_not_excuse_the_loss_of_an_older_write() {
    let older = "0-2 acquire A granted 1
        10-12 complete A done v=7
        25-40 fault loss lossy
        30-31 acquire C complete v=7 of=1
        32-33 acquire D complete v=7 of=1
        5000-5001 acquire B granted 2";
    assert_eq!((broken(older), losses(older)), (vec!["S6"], 0));
}

#[test]
fn s1_s2_s5_s9_s14_what_follows_from_a_lost_grant_is_counted() {
    for (rules, script) in [
        (
            "a grant is lost, and its token is granted again",
            "0-2 acquire A granted 1 lease=1000
             1-40 fault loss lossy
             50-51 acquire B granted 1",
        ),
        (
            "a takeover is lost, and the lease is taken over again",
            "0-2 acquire A granted 1
             105-108 acquire B took_over 2
             107-140 fault loss lossy
             150-152 acquire C took_over 2",
        ),
        (
            "a release is lost",
            "0-2 acquire A granted 1 lease=1000
             10-12 release A done
             11-40 fault loss lossy
             50-51 acquire B busy 1 left=950",
        ),
        (
            "a beat is lost, so the lease ends as if it had not been sent",
            "0-2 acquire A granted 1 lease=1000
             500-502 extend A done lease=1000
             501-540 fault loss lossy
             600-601 acquire B busy 1 left=400",
        ),
        (
            "a result that was replayed is lost, and another takes its place",
            "0-2 acquire A granted 1
             10-12 complete A done v=7
             13-14 acquire B complete v=7 of=1
             11-40 fault loss lossy
             150-151 acquire C took_over 2
             160-161 complete C done v=8
             170-171 acquire D complete v=8 of=2",
        ),
    ] {
        assert_eq!(broken(script), [""; 0], "{rules}");
        assert!(losses(script) > 0, "{rules}");
        let without: String = script
            .lines()
            .filter(|line| !line.contains("loss"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(!broken(&without).is_empty(), "{rules}, without a failover");
    }
}

#[test]
fn the_pause_of_an_outage_is_the_longest_time_without_an_answer() {
    let script = "0-2 acquire A granted 1 lease=1000
        10-80 fault failover
        60-75 acquire B busy 1 left=930
        90-92 acquire B busy 1 left=910
        100-110 fault kill
        3000-3001 acquire B took_over 2";
    assert_eq!(history::judge(&run(script)).pauses, [73_000_000]);
    for other in ["freeze", "handover", "restart", "shutdown"] {
        let script = script.replace("failover", other);
        assert_eq!(history::judge(&run(&script)).pauses, [73_000_000], "{other}");
    }
}
