// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the program as a new user would: the demo on librdkafka's mock cluster, and its messages
//! for bad arguments.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use retryproof::kafka::rdkafka::mocking::MockCluster;

fn listener(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_listener-kafka"));
    command.args(args).env_remove("KAFKA_BROKERS").output().expect("the program starts")
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn count(printed: &str, name: &str) -> u64 {
    let row = printed.lines().find(|line| line.trim_start().starts_with(name));
    let count = row.and_then(|row| row.split_whitespace().last()?.parse().ok());
    count.unwrap_or_else(|| panic!("no row {name:?} in {printed}"))
}

#[test]
fn lst_1_cmp_7_members_that_die_book_each_order_once_on_the_mock_cluster() {
    let output = listener(&["demo", "--orders", "200", "--deaths", "2"]);
    let printed = text(&output);
    assert!(output.status.success() && printed.contains("every promise held"), "{printed}");
    assert!(printed.starts_with("On librdkafka's mock cluster"), "{printed}");
    assert_eq!(
        (count(&printed, "messages published"), count(&printed, "receipts")),
        (400, 200),
        "{printed}"
    );
    assert_eq!(count(&printed, "members that died"), 2, "{printed}");
    // If no message had been redelivered, the demo would prove nothing.
    assert!(count(&printed, "messages handled again by another member") >= 2, "{printed}");
    assert!(count(&printed, "skipped: booked before") >= 202, "{printed}");
}

/// A process that is killed when its test ends.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn lst_2_a_member_that_is_told_to_stop_ends_in_order() {
    let mock = MockCluster::new(1).expect("a mock cluster");
    for topic in ["orders.paid", "orders.paid.dead"] {
        mock.create_topic(topic, 1, 1).expect("a topic");
    }
    for signal in ["TERM", "INT"] {
        let name = format!("retryproof-listener-kafka-{signal}-{}.db", std::process::id());
        let db = std::env::temp_dir().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_listener-kafka"));
        command.args(["listen", "--brokers", &mock.bootstrap_servers(), "--db"]).arg(&db);
        command.env_remove("RUST_LOG").stderr(Stdio::piped());
        let mut started = Started(command.spawn().expect("the program starts"));
        let errors = BufReader::new(started.0.stderr.take().expect("piped"));
        let (lines, printed) = mpsc::channel();
        // This thread ends when the program's output ends.
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        let prints = |what| {
            while let Ok(line) = printed.recv_timeout(Duration::from_secs(60)) {
                if line.contains(what) {
                    return true;
                }
            }
            false
        };
        assert!(prints("listening"), "it did not begin");
        let sent =
            Command::new("kill").args([format!("-{signal}"), started.0.id().to_string()]).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "{signal} was not sent");
        assert!(prints("stopped"), "{signal}: {:?}", started.0.try_wait());
        let ended = started.0.wait().expect("waited for");
        assert!(ended.success(), "{signal}: {ended}");
        for end in ["", "-wal", "-shm"] {
            drop(std::fs::remove_file(format!("{}{end}", db.display())));
        }
    }
}

#[test]
fn bad_arguments_are_refused_with_the_usage() {
    for (args, why) in [
        (&["demo", "--orders", "many"][..], "\"many\" is not a valid value for --orders"),
        (&["listen", "--deaths", "3"], "`listen` has no option \"--deaths\""),
        (&["--topic"], "--topic needs a value"),
    ] {
        let output = listener(args);
        assert_eq!(output.status.code(), Some(2));
        let printed = text(&output);
        assert!(printed.contains(why) && printed.contains("usage: listener-kafka"), "{printed}");
    }
    let output = listener(&["listen"]);
    assert!(!output.status.success() && text(&output).contains("set `--brokers HOST:PORT`"));
}
