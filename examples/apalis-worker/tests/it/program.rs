// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program as a newcomer runs it, and killed in the middle of its work.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use apalis_worker::worker::CONCURRENCY;

const PATIENCE: Duration = Duration::from_secs(60);

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apalis-worker"));
    command.args(args);
    command
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn lst_1_the_demo_mails_each_invoice_once() {
    let output = program(&["demo"]).output().expect("the program starts");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    for start in ["first start", "second start"] {
        let line = format!("{start}: 6 jobs done, 0 given up; 3 mails sent in all");
        assert!(said.contains(&line), "{line:?} is missing in {said}");
    }
}

#[test]
fn cfg_1_bad_arguments_are_told_how_it_is_used() {
    let output = program(&["work"]).output().expect("the program starts");
    assert!(!output.status.success() && text(&output).contains("usage"), "{output:?}");
}

/// A folder that is removed with the test, and a process that is killed with it.
struct Place(PathBuf, Option<Child>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(child) = &mut self.1 {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn lst_1_run_5_a_killed_worker_loses_no_job_and_what_was_done_is_not_done_again() {
    const JOBS: usize = 60;
    let folder = std::env::temp_dir().join(format!("apalis-worker-killed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut place = Place(folder.clone(), None);
    let path = |name: &str| folder.join(name).display().to_string();
    let (outbox, mails) = (path("outbox.jsonl"), path("mails.tsv"));
    let store = format!("sqlite:{}", path("records.db"));
    let lines = (0..JOBS).fold(String::new(), |mut lines, order| {
        let _ = writeln!(lines, r#"{{"order":"o-{order}","customer":"bob","cents":1}}"#);
        lines
    });
    std::fs::write(&outbox, lines).expect("the outbox");
    let args = ["run", &outbox, &mails, &store];
    let sent = || {
        let mails = std::fs::read_to_string(&mails).unwrap_or_default();
        mails.lines().map(str::to_owned).collect::<Vec<_>>()
    };

    place.1 = Some(program(&args).stdout(Stdio::null()).spawn().expect("the program starts"));
    let some = async {
        while sent().len() < 10 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, some).await.expect("it sends mails");
    let child = place.1.as_mut().expect("it runs");
    child.kill().expect("SIGKILL");
    let _ = child.wait();
    let before = sent().len();
    assert!(before < JOBS, "it was killed too late to show anything");

    // All jobs are delivered again. The second process takes over the jobs of the killed worker
    // when their leases end.
    let again = tokio::task::spawn_blocking({
        let mut command = program(&args);
        move || command.output()
    });
    let output = tokio::time::timeout(PATIENCE, again)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("it starts");
    assert!(output.status.success(), "{}", text(&output));
    let mails = sent();
    let orders: HashSet<_> = mails.iter().filter_map(|mail| mail.split('\t').next()).collect();
    assert_eq!(orders.len(), JOBS, "each was mailed");
    // If the worker was killed after it sent a mail but before it recorded the job, the mail is
    // sent again with the same message id.
    assert!(mails.len() - JOBS <= CONCURRENCY, "{} mails sent twice", mails.len() - JOBS);
    let ids: HashSet<_> = mails.iter().filter_map(|mail| mail.split('\t').nth(3)).collect();
    assert_eq!(ids.len(), JOBS, "a mail server that knows message ids delivers each once");

    // A third run finds nothing left to do.
    let output = program(&args).output().expect("the program starts");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(sent().len(), mails.len());
}
