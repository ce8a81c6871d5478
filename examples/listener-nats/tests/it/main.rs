// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the program as a new user would: a small storm on a real server, and its messages for bad
//! arguments.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use retryproof_testkit::broker;

fn listener(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_listener-nats"))
        .args(args)
        .output()
        .expect("the program starts")
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn url() -> String {
    broker::service(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), "RETRYPROOF_TEST_NATS")
        .expect("no nats for this test: run `cargo xtask services up nats`")
}

fn count(printed: &str, name: &str) -> u64 {
    let row = printed.lines().find(|line| line.trim_start().starts_with(name));
    let count = row.and_then(|row| row.split_whitespace().last()?.parse().ok());
    count.unwrap_or_else(|| panic!("no row {name:?} in {printed}"))
}

#[test]
fn lst_2_cmp_7_a_storm_of_kills_and_cuts_books_each_order_once() {
    let output =
        listener(&["storm", "--url", &url(), "--orders", "400", "--kills", "3", "--cuts", "3"]);
    let printed = text(&output);
    assert!(output.status.success() && printed.ends_with("every promise held\n"), "{printed}");
    assert_eq!(count(&printed, "messages published"), 800, "{printed}");
    assert_eq!(count(&printed, "invoices"), 400, "{printed}");
    assert_eq!(count(&printed, "consumers killed by SIGKILL"), 3, "{printed}");
    assert_eq!(count(&printed, "times all connections were cut"), 3, "{printed}");
    assert_eq!(count(&printed, "orders without an invoice"), 0, "{printed}");
    assert_eq!(count(&printed, "orders with more than one invoice"), 0, "{printed}");
    // If no redelivery had been skipped, the storm would prove nothing.
    assert!(count(&printed, "skipped: booked before") > 100, "{printed}");
    // A consumer that is killed between a commit and its log line never logs that booking. At most
    // 16 handlers run at that moment, so each kill loses at most 16 lines. Nothing adds a line.
    assert!((400 - 3 * 16..=400).contains(&count(&printed, "booked")), "{printed}");
}

/// Deletes the streams of a listener.
#[tokio::main(flavor = "current_thread")]
async fn forget(name: &str) {
    let jetstream =
        async_nats::jetstream::new(async_nats::connect(url()).await.expect("connected"));
    for stream in [name.to_owned(), format!("{name}-dead")] {
        jetstream.delete_stream(stream).await.expect("removed");
    }
}

/// Stops the program as a service manager does: the program ends by itself and reports that.
#[cfg(unix)]
#[test]
fn run_5_sigterm_ends_it_in_order() {
    let name = format!("term-{}", std::process::id());
    let db = std::env::temp_dir().join(format!("retryproof-listener-nats-{name}.db"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_listener-nats"));
    command
        .args(["listen", "--url", &url(), "--name", &name, "--db"])
        .arg(&db)
        .env("RUST_LOG", "info");
    let mut running = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut printed = String::new();
    let mut lines = BufReader::new(running.stderr.take().expect("piped"));
    while !printed.contains("listening") {
        assert!(lines.read_line(&mut printed).expect("read") > 0, "it ended: {printed}");
    }
    let sent =
        Command::new("kill").args(["-TERM", &running.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    lines.read_to_string(&mut printed).expect("read");
    let status = running.wait().expect("it ends");
    for ending in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(format!("{}{ending}", db.display())));
    }
    forget(&name);
    assert!(status.success() && printed.contains("stopped"), "{status}: {printed}");
}

#[test]
fn bad_arguments_are_refused_with_the_usage() {
    for (args, why) in [
        (&["storm", "--orders", "many"][..], "\"many\" is not a valid value for --orders"),
        (&["listen", "--orders", "3"], "`listen` has no option \"--orders\""),
        (&["storm", "--workers", "0"], "take at least 1"),
        (&["--db"], "--db needs a value"),
    ] {
        let output = listener(args);
        assert_eq!(output.status.code(), Some(2));
        let printed = text(&output);
        assert!(printed.contains(why) && printed.contains("usage: listener-nats"), "{printed}");
    }
}
