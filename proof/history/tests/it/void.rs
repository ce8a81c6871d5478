// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run with too few calls or faults is void, and a folder that is not a history is refused.

use std::path::PathBuf;
use std::process::Command;

use history::{Journal, Run};

use crate::good::GOOD;
use crate::script::{events, manifest};

/// A new folder, which is removed with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("retryproof-history-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn store(&self, script: &str, secs: u64) {
        let manifest = history::Manifest { secs, ..manifest() };
        std::fs::write(self.0.join("run.json"), serde_json::to_vec(&manifest).unwrap()).unwrap();
        let journal = Journal::open(self.0.join("events-1.jsonl")).unwrap();
        for event in events(script) {
            journal.write(&event).unwrap();
        }
    }

    fn judged(&self) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_history")).arg(&self.0).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_quiet_run_is_void_and_a_violation_is_shown_with_its_events() {
    let dir = Dir::new("void");
    dir.store(GOOD[0].1, 600);
    let (code, text) = dir.judged();
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("VOID") && text.contains("TOO FEW") && text.contains("0 violations"),
        "{text}"
    );

    let dir = Dir::new("wrong");
    dir.store("0-2 acquire A granted 1\n20-22 acquire B granted 2", 600);
    let (code, text) = dir.judged();
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("VIOLATED: 1 violations") && text.contains("\nS1 \"s\" \"k\": "),
        "{text}"
    );
    assert!(text.contains("\"fn\":\"acquire\""), "{text}");
}

#[test]
fn minimum_counts_are_in_proportion_and_only_of_faults_that_were_asked_for() {
    let least = |secs, share, faults: &[&str]| {
        let faults = faults.iter().map(|fault| (*fault).to_owned()).collect();
        let run = Run::new(history::Manifest { secs, share, faults, ..manifest() });
        history::judge(&run).counts.list()
    };
    let find =
        |list: &[history::Count], name: &str| list.iter().find(|c| c.name == name).map(|c| c.least);
    let long = least(600, 1.0, &["kill", "stop"]);
    assert_eq!(find(&long, "operations"), Some(100_000));
    assert_eq!(find(&long, "kills"), Some(1_000));
    assert_eq!(find(&long, "pauses"), Some(300));
    assert_eq!(find(&long, "takeovers"), Some(1_000));
    let short = least(30, 0.2, &["kill"]);
    assert_eq!(find(&short, "operations"), Some(1_000));
    assert_eq!(find(&short, "kills"), Some(10));
    assert_eq!(find(&short, "pauses"), None);
    assert_eq!(find(&least(1, 0.2, &["restart"]), "store restarts"), Some(1));
    assert_eq!(find(&least(1, 0.2, &["shutdown"]), "orderly restarts"), Some(1));
    let jump = least(1, 0.2, &["jump"]);
    assert_eq!(find(&jump, "moves of the store's clock"), Some(1));
    assert_eq!(find(&jump, "answers that only a moved clock explains"), Some(1));
    let overlap = "percentage of operations that overlap a fault";
    assert_eq!(find(&least(30, 0.2, &["kill", "lose"]), overlap), None, "neither lasts");
    assert_eq!(find(&least(30, 0.2, &["kill", "cut"]), overlap), Some(2));
    assert_eq!(find(&least(30, 0.2, &["kill", "stop"]), overlap), Some(30));
    let struck = "faults while a server was down";
    assert_eq!(find(&least(1, 0.2, &["restart"]), struck), None, "no other fault was asked for");
    assert_eq!(find(&least(1, 0.2, &["restart", "kill"]), struck), Some(1));
}

#[test]
fn l2_wake_ups_that_are_too_few_for_a_median_are_named() {
    let missing = |share, pushes, scripts: usize| {
        let wait = |at: usize| {
            let script = "0-2 acquire A granted 1 lease=1000
                p2 5-24 respond c1 replayed wait=2000 v=7 of=1
                p2 5-6 acquire B busy 1 left=995 call=1
                20-22 complete A done v=7
                p2 22-24 acquire C complete v=7 of=1 call=1";
            let (call, key) = (at + 1, format!(" key=k{at}"));
            let line = |line: &str| line.trim().replace("c1 ", &format!("c{call} ")) + &key;
            let line = |text: &str| line(text).replace("call=1", &format!("call={call}"));
            script.lines().map(line).collect::<Vec<_>>().join("\n")
        };
        let script = (0..scripts).map(wait).collect::<Vec<_>>().join("\n");
        let manifest = history::Manifest { share, pushes, workers: 2, ..manifest() };
        let judgement = history::judge(&crate::script::run_of(manifest, &script));
        let undisturbed = judgement.counts.undisturbed;
        let missing = judgement.missing().into_iter().map(|count| count.name);
        let missing = missing.filter(|name| name.starts_with("undisturbed")).collect::<Vec<_>>();
        (undisturbed, missing)
    };
    let (same, other) =
        ("undisturbed wake-ups in the same process", "undisturbed wake-ups in another process");
    assert_eq!(missing(1.0, true, 9), ([0, 9], vec![same, other]));
    assert_eq!(missing(1.0, true, 10), ([0, 10], vec![same]));
    assert_eq!(missing(1.0, false, 10), ([0, 0], vec![same]), "nothing notifies another process");
    assert_eq!(missing(0.03, true, 9), ([0, 9], vec![]), "a short run says so in its report");
}

#[test]
fn a_fault_while_the_server_was_down_is_counted_by_when_it_began() {
    let counts = |script: &str| {
        let run = crate::script::run(script);
        let counts = history::judge(&run).counts;
        (counts.downs, counts.struck_while_down)
    };
    let script = "100-500 fault restart
        100-300 fault down
        90-200 fault kill victim=1
        100-400 fault stop victim=2
        300-310 fault cut
        301-310 fault kill victim=1
        150-151 fault leap victim=1";
    assert_eq!(counts(script), (1, 2));
}

#[test]
fn a_torn_last_line_is_the_writers_death_and_anything_else_is_refused() {
    let dir = Dir::new("torn");
    dir.store(GOOD[1].1, 600);
    let path = dir.0.join("events-1.jsonl");
    let whole = std::fs::read(&path).unwrap();
    // The process was killed while it wrote its last line, so the call that this line would have
    // answered counts as unanswered (*info*).
    for cut in [1, 10, 60] {
        std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        let (run, _) = history::read(&dir.0).unwrap();
        assert_eq!(run.events, events(GOOD[1].1).len() as u64 - 1, "{cut} bytes short");
    }
    let refused = |text: &[u8], why: &str| {
        std::fs::write(&path, text).unwrap();
        let error = history::read(&dir.0).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(dir.judged().0, Some(2));
    };
    refused(b"{}\n", "line 1");
    refused(b"not an event\n{}", "line 1");
    refused(
        br#"{"proc":1,"incarnation":1,"op":1,"fn":"look","phase":"ok","mono_ns":1,"said":"absent"}
"#,
        "did not begin",
    );
    refused(
        br#"{"proc":1,"incarnation":1,"op":1,"fn":"look","phase":"ok","mono_ns":1,"colour":"red"}
"#,
        "colour",
    );
    std::fs::remove_file(dir.0.join("run.json")).unwrap();
    assert_eq!(dir.judged().0, Some(2));
}

#[test]
fn only_what_was_really_wrong_counts_as_a_fault() {
    // Ten calls of a millisecond, one every 10 ms.
    let calls: String =
        (0..10).map(|at| format!("{}-{} look - absent\n", at * 10, at * 10 + 1)).collect();
    let overlapping = |faults: &str| {
        let run = crate::script::run(&format!("{calls}{faults}"));
        history::judge(&run).counts.overlapping
    };
    assert_eq!(
        overlapping("0-99 fault stop victim=1"),
        0,
        "nothing was stopped between the orders"
    );
    assert_eq!(overlapping("0-99 fault stop victim=1 real=5..31"), 3);
    assert_eq!(overlapping("0-99 fault cut real=85..99"), 1);
    // A killed process is dead until its next life begins, and is not stopped any more.
    assert_eq!(overlapping("0-99 fault kill victim=2 real=15..15\np2 35 proc begins"), 2);
    assert_eq!(overlapping("0-99 fault kill victim=2 real=15..15\np3 35 proc begins"), 8);
    let stopped = "0-99 fault stop victim=2 real=5..99\n10-12 fault kill victim=2 real=25..25";
    assert_eq!(overlapping(&format!("{stopped}\np2 26 proc begins")), 2);
}
