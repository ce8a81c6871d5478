// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of `run` with kills and races: only one run happens at a time, and no command outlives
//! the `run` process that started it.

use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Place, code, err, eventually, is_alive, out, started};

fn send(signal: Signal, to: &Child) {
    kill_process(Pid::from_child(to), signal).expect("the process exists");
}

/// Returns the process id that a script has written to a file.
fn pid_in(place: &Place, file: &str) -> String {
    eventually("the start of the command", || {
        let pid = place.read(file);
        pid.ends_with('\n').then(|| pid.trim().to_owned())
    })
}

#[test]
fn acq_1_of_two_started_at_once_one_runs_and_the_other_replays() {
    one_run_at_a_time(&Place::sqlite());
}

/// Starts a command twice at the same time: it runs once. Then kills a run under another key: the
/// next run takes over.
pub(crate) fn one_run_at_a_time(place: &Place) {
    let script = "echo run >> runs; cat go > /dev/null; echo out; echo err >&2; exit 3";
    let pipe = Command::new("mkfifo").arg(place.path("go")).status();
    assert!(pipe.is_ok_and(|status| status.success()), "a pipe that commands wait for");
    let options = ["--lease", "PT2S", "--wait", "PT1M"];
    let both = [0, 1].map(|_| started(&mut place.run(&options, script)));
    eventually("a first run", || (place.read("runs") == "run\n").then_some(()));
    std::fs::write(place.path("go"), "").expect("the command reads the pipe");
    for child in both {
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(
            (code(&output), out(&output), err(&output)),
            (3, "out\n".into(), "err\n".into())
        );
    }
    assert_eq!(place.read("runs"), "run\n");

    // One run is killed. The next run waits for the end of the killed run's lease, and takes over.
    let script = "echo $RETRYPROOF_ATTEMPT >> attempts; echo $$ > pid; [ $RETRYPROOF_ATTEMPT = \
                  takeover ] || exec sleep 300; echo finished";
    let run = || {
        let mut command = place.retryproof(["run", "--lease", "PT2S", "--wait", "PT1M"]);
        command.args(["work", "killed", "--", "sh", "-c", script]);
        started(&mut command)
    };
    let mut killed = run();
    let pid = pid_in(place, "pid");
    let waiting = run();
    send(Signal::KILL, &killed);
    killed.wait().expect("it was killed");
    eventually("the end of the command", || (!is_alive(&pid)).then_some(()));
    let output = waiting.wait_with_output().expect("it ends");
    assert_eq!((code(&output), out(&output)), (0, "finished\n".to_owned()), "{}", err(&output));
    assert_eq!(place.read("attempts"), "first\ntakeover\n");
}

#[test]
fn a_killed_wrapper_takes_its_command_along() {
    let place = Place::sqlite();
    let script = "trap '' TERM HUP INT; echo $$ > pid; while :; do sleep 1; done";
    let mut wrapper = started(&mut place.run(&[], script));
    let pid = pid_in(&place, "pid");
    assert!(is_alive(&pid));
    send(Signal::KILL, &wrapper);
    wrapper.wait().unwrap();
    eventually("the end of the command", || (!is_alive(&pid)).then_some(()));
}

#[test]
fn run_4_a_command_killed_by_a_signal_keeps_its_key_until_the_lease_is_over() {
    let place = Place::sqlite();
    let script = "echo $RETRYPROOF_ATTEMPT >> attempts; \
                  [ $RETRYPROOF_ATTEMPT = takeover ] || kill -9 $$; echo recovered";
    let options = ["--lease", "PT3S", "--wait", "PT0S"];
    let killed = place.run(&options, script).output().unwrap();
    assert_eq!(code(&killed), 137);
    assert!(err(&killed).contains("signal 9 killed the command"), "{}", err(&killed));
    let early = place.run(&options, script).output().unwrap();
    assert_eq!(code(&early), 75);
    assert!(err(&early).contains("is in progress (holder: \""), "{}", err(&early));
    assert!(err(&early).contains("left, and a live holder extends it; wait"), "{}", err(&early));
    let late = place.run(&["--lease", "PT3S", "--wait", "PT1M"], script).output().unwrap();
    assert_eq!((code(&late), out(&late)), (0, "recovered\n".to_owned()));
    assert_eq!(place.read("attempts"), "first\ntakeover\n");
}

#[test]
fn a_signal_to_the_wrapper_reaches_the_command_and_its_answer_is_a_result() {
    let place = Place::sqlite();
    let script = "trap 'echo stopping; exit 9' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    let wrapper = started(&mut place.run(&[], script));
    pid_in(&place, "pid");
    send(Signal::TERM, &wrapper);
    let output = wrapper.wait_with_output().unwrap();
    assert_eq!((code(&output), out(&output)), (9, "stopping\n".to_owned()));
    let again = place.run(&[], script).output().unwrap();
    assert_eq!((code(&again), out(&again)), (9, "stopping\n".to_owned()));
}

#[test]
fn run_2_a_lost_lease_stops_the_command_and_records_nothing() {
    let place = Place::sqlite();
    let script = "echo $$ > pid; trap 'echo stopped >> stopped; exit 0' TERM; \
                  while :; do sleep 0.1; done";
    let wrapper = started(&mut place.run(&["--lease", "PT1S"], script));
    let pid = pid_in(&place, "pid");
    // Change the record as if another process had taken over.
    let db = rusqlite::Connection::open(place.db()).unwrap();
    db.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
    let changed = db
        .execute("UPDATE retryproof_records SET owner = zeroblob(16), expires_at = 1 << 60", [])
        .unwrap();
    assert_eq!(changed, 1);
    let output = wrapper.wait_with_output().unwrap();
    assert_eq!(code(&output), 125, "{}", err(&output));
    let why = "was lost, so the command was stopped: the key was taken over, or an operator \
               released or resolved it (`retryproof audit`";
    assert!(err(&output).contains(why), "{}", err(&output));
    assert_eq!(place.read("stopped"), "stopped\n");
    assert!(!is_alive(&pid));
    let state: i64 =
        db.query_row("SELECT state FROM retryproof_records", [], |row| row.get(0)).unwrap();
    assert_eq!(state, 0, "still in progress for the other owner");
}
