// SPDX-License-Identifier: MIT OR Apache-2.0
//! `run`: what is recorded, and what a duplicate gets.

use std::process::Stdio;

use crate::support::{Place, bare, code, err, eventually, out, started};

#[test]
fn a_duplicate_prints_the_same_bytes_and_ends_with_the_same_code() {
    let place = Place::sqlite();
    let script = "echo run >> runs; printf 'a\\000\\377b'; printf 'e\\033[31m\\n' >&2; \
                  printf 'last without end of line'; exit 7";
    let first = place.run(&[], script).output().unwrap();
    assert_eq!(code(&first), 7, "{}", err(&first));
    assert_eq!(first.stdout, b"a\0\xffblast without end of line");
    assert_eq!(first.stderr, b"e\x1b[31m\n");
    for _ in 0..2 {
        let again = place.run(&[], script).output().unwrap();
        assert_eq!(
            (code(&again), again.stdout, again.stderr),
            (7, first.stdout.clone(), first.stderr.clone())
        );
    }
    assert_eq!(place.read("runs"), "run\n");
}

#[test]
fn output_larger_than_a_pipe_is_replayed_exactly() {
    let place = Place::sqlite();
    let script = "seq 1 200000; seq 1 50000 >&2";
    let first = place.run(&[], script).output().unwrap();
    assert_eq!(code(&first), 0, "{}", err(&first));
    assert!(first.stdout.ends_with(b"\n200000\n") && first.stderr.ends_with(b"\n50000\n"));
    let again = place.run(&[], script).output().unwrap();
    assert!(again.stdout == first.stdout && again.stderr == first.stderr);
}

#[test]
fn cmp_9_too_much_output_is_shown_once_and_then_only_its_exit_code_is_known() {
    let place = Place::sqlite();
    let script = "echo run >> runs; head -c 2000 /dev/zero | tr '\\0' x; exit 3";
    let first = place.run(&["--max-output", "1999"], script).output().unwrap();
    assert_eq!((code(&first), first.stdout.len()), (3, 2_000));
    assert!(err(&first).contains("(2000 bytes) is larger than --max-output"), "{}", err(&first));
    let again = place.run(&["--max-output", "1999"], script).output().unwrap();
    assert_eq!((code(&again), out(&again)), (3, String::new()));
    assert!(err(&again).contains("its output was too large to be kept"), "{}", err(&again));
    assert_eq!(place.read("runs"), "run\n");

    let fits = place.retryproof(["run", "--max-output", "3", "work", "other", "--", "echo", "ab"]);
    let mut fits = fits;
    assert_eq!(out(&fits.output().unwrap()), "ab\n");
    assert_eq!(out(&fits.output().unwrap()), "ab\n");
}

#[test]
fn an_exit_code_that_retry_on_names_frees_the_key() {
    let place = Place::sqlite();
    let script = "echo run >> runs; [ $(wc -l < runs) -gt 1 ] || exit 75; echo done";
    let options = ["--retry-on", "1,70-80"];
    assert_eq!(code(&place.run(&options, script).output().unwrap()), 75);
    let second = place.run(&options, script).output().unwrap();
    assert_eq!((code(&second), out(&second)), (0, "done\n".to_owned()));
    let third = place.run(&options, script).output().unwrap();
    assert_eq!((code(&third), out(&third)), (0, "done\n".to_owned()));
    assert_eq!(place.read("runs"), "run\nrun\n");
}

#[test]
fn a_command_that_cannot_start_frees_the_key() {
    let place = Place::sqlite();
    std::fs::write(place.path("plain"), "no program").unwrap();
    let script = place.path("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    for (command, expected) in [("no-such-command", 127), ("./plain", 126), ("./script", 127)] {
        let failed = place.retryproof(["run", "work", "k", "--", command]).output().unwrap();
        assert_eq!(code(&failed), expected, "{}", err(&failed));
        assert!(err(&failed).contains("could not be started"), "{}", err(&failed));
    }
    assert_eq!(out(&place.run(&[], "echo ran").output().unwrap()), "ran\n");
    // If the command itself exits with 125, 126 or 127, its result is recorded.
    for expected in [125, 126, 127] {
        let key = expected.to_string();
        let script = format!("echo run >> {key}; exit {expected}");
        for _ in 0..2 {
            let mut run = place.retryproof(["run", "work", &key, "--", "sh", "-c", &script]);
            assert_eq!(code(&run.output().unwrap()), expected);
        }
        assert_eq!(place.read(&key), "run\n");
    }
}

#[test]
fn a_closed_pipe_ends_neither_the_command_nor_its_recording() {
    let place = Place::sqlite();
    let mut first = started(&mut place.run(&[], "seq 1 100000; echo end; exit 4"));
    drop(first.stdout.take());
    drop(first.stderr.take());
    assert_eq!(first.wait().unwrap().code(), Some(4));
    let mut replayed = started(&mut place.run(&[], "exit 1"));
    drop(replayed.stdout.take());
    assert_eq!(replayed.wait().unwrap().code(), Some(4));
    let again = place.run(&[], "exit 1").output().unwrap();
    assert!(out(&again).ends_with("\n100000\nend\n") && err(&again).is_empty());
}

#[test]
fn run_1_a_paused_reader_delays_the_command_but_not_the_heartbeat() {
    let place = Place::sqlite();
    let options = ["--lease", "PT1S", "--wait", "PT0S"];
    let mut first = started(&mut place.run(&options, "echo > up; seq 1 400000; echo end"));
    eventually("the start of the command", || place.path("up").exists().then_some(()));
    // The pipe stays full for longer than the lease.
    for _ in 0..3 {
        let waited = place.run(&["--lease", "PT1S", "--wait", "PT1S"], "echo again").output();
        assert_eq!(code(&waited.unwrap()), 75);
    }
    let output = std::io::read_to_string(first.stdout.take().unwrap()).unwrap();
    assert!(output.ends_with("\n400000\nend\n"));
    assert_eq!(first.wait().unwrap().code(), Some(0));
}

#[test]
fn run_1_a_reader_that_reads_nothing_keeps_no_finished_command_unrecorded() {
    let place = Place::sqlite();
    let options = ["--lease", "PT1S", "--wait", "PT0S"];
    // The first line fills the pipe, and the others fill every queue behind it.
    let script = "echo run >> runs; head -c 65536 /dev/zero | tr '\\0' x
                  for i in $(seq 40); do echo $i; sleep 0.01; done; echo > done";
    let mut first = started(&mut place.run(&options, script));
    eventually("the end of the command", || place.path("done").exists().then_some(()));
    eventually("the record", || {
        let got = place.retryproof(["get", "work", "k"]).output().unwrap();
        out(&got).contains("complete").then_some(())
    });
    let pid = rustix::process::Pid::from_child(&first);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    eventually("the end of the wait for the reader", || first.try_wait().unwrap());
    assert_eq!(code(&place.run(&options, script).output().unwrap()), 0);
    assert_eq!(place.read("runs"), "run\n", "the work runs once");
}

#[test]
fn a_process_in_the_background_does_not_keep_the_run_alive() {
    let place = Place::sqlite();
    let run = place.run(&[], "sleep 300 & echo $! > pid; echo started").output().unwrap();
    assert_eq!((code(&run), out(&run)), (0, "started\n".to_owned()));
    let pid = place.read("pid").trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn the_command_reads_stdin_and_finds_its_token_and_downstream_keys() {
    let place = Place::sqlite();
    let script = r#"cat; echo "$RETRYPROOF_SCOPE $RETRYPROOF_KEY $RETRYPROOF_ATTEMPT";
                    [ "$RETRYPROOF_TOKEN" -gt 0 ] && "$0" key charge"#;
    let mut command = place.retryproof(["run", "work", "k", "--", "sh", "-c", script]);
    let mut child = command
        .arg(env!("CARGO_BIN_EXE_retryproof"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"input\n").unwrap();
    let output = out(&child.wait_with_output().unwrap());
    let lines: Vec<_> = output.lines().collect();
    // The derivation must never change: the key is the SHA-256 of the lengths and texts of a label,
    // "work", "k" and "charge".
    let hash = downstream_key("work", "k", "charge");
    assert_eq!(lines, ["input", "work k first", &hash]);

    let outside = bare().args(["key", "charge"]).env_remove("RETRYPROOF_KEY").output().unwrap();
    assert_eq!(code(&outside), 2);
    assert!(err(&outside).contains("works only in a command"), "{}", err(&outside));
}

fn downstream_key(scope: &'static str, key: &str, step: &str) -> String {
    use retryproof::{IdempotencyContext, IdempotencyEngine, MemoryStore};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let engine = IdempotencyEngine::new(MemoryStore::new());
        let context = IdempotencyContext::builder(scope, key).build().unwrap();
        let derived = engine.execute_with(context, |lease| async move {
            Ok::<_, std::io::Error>(lease.downstream_key(step))
        });
        derived.await.unwrap().into_value().unwrap()
    })
}

#[test]
fn own_failures_have_the_code_125() {
    let place = Place::sqlite();
    let usage: [&[&str]; 5] = [
        &["run"],
        &["run", "work", "k"],
        &["run", "work", "k", "--lease", "30s", "--", "true"],
        &["run", "work", "k", "--retry-on", "0", "--", "true"],
        &["run", "work", "", "--", "true"],
    ];
    for arguments in usage {
        let failed = place.retryproof(arguments).output().unwrap();
        assert_eq!(code(&failed), 125, "{arguments:?}: {}", err(&failed));
    }
    let failed = bare().args(["run", "work", "k", "--", "true"]).output().unwrap();
    assert_eq!(code(&failed), 125);
    assert!(err(&failed).contains("no store is configured"), "{}", err(&failed));

    let missing = format!("sqlite:{}", place.path("missing.db").display());
    let run = ["--store", &missing, "run", "work", "k", "--", "true"];
    let failed = bare().args(run).output().unwrap();
    assert_eq!(code(&failed), 125);
    assert!(err(&failed).contains("error: "), "{}", err(&failed));
}

#[test]
fn a_record_of_another_program_is_not_replayed() {
    let place = Place::sqlite();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use retryproof::{IdempotencyContext, IdempotencyEngine};

        let engine = IdempotencyEngine::new(retryproof::connect(&place.url).await.unwrap());
        let context = IdempotencyContext::builder("work", "k").build().unwrap();
        let done = engine.execute(context, || async { Ok::<_, std::io::Error>(7) });
        assert!(done.await.unwrap().is_executed());
    });
    let run = place.run(&[], "echo run").output().unwrap();
    assert_eq!((code(&run), out(&run)), (125, String::new()));
    assert!(err(&run).contains("`retryproof run` did not do it"), "{}", err(&run));
}
