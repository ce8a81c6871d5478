// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program as a newcomer runs it: the demo on librdkafka's mock cluster, and what it says to bad arguments.

use std::process::{Command, Output};

fn listener(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_listener-kafka"));
    command.args(args).env_remove("KAFKA_BROKERS").output().expect("the program starts")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn count(said: &str, name: &str) -> u64 {
    let row = said.lines().find(|line| line.trim_start().starts_with(name));
    let count = row.and_then(|row| row.split_whitespace().last()?.parse().ok());
    count.unwrap_or_else(|| panic!("no row {name:?} in {said}"))
}

#[test]
fn lst_1_cmp_7_members_that_die_book_each_order_once_on_the_mock_cluster() {
    let output = listener(&["demo", "--orders", "200", "--deaths", "2"]);
    let said = text(&output);
    assert!(output.status.success() && said.contains("every promise held"), "{said}");
    assert!(said.starts_with("On librdkafka's mock cluster"), "{said}");
    assert_eq!((count(&said, "messages published"), count(&said, "receipts")), (400, 200), "{said}");
    assert_eq!(count(&said, "members that died"), 2, "{said}");
    // A demo in which nothing came again would prove nothing.
    assert!(count(&said, "messages handled again by another member") >= 2, "{said}");
    assert!(count(&said, "skipped: booked before") >= 202, "{said}");
}

#[test]
fn bad_arguments_are_refused_with_the_usage() {
    for (args, why) in [
        (&["demo", "--orders", "many"][..], "--orders cannot be \"many\""),
        (&["listen", "--deaths", "3"], "`listen` does not know the option \"--deaths\""),
        (&["--topic"], "--topic wants a value"),
    ] {
        let output = listener(args);
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output);
        assert!(said.contains(why) && said.contains("usage: listener-kafka"), "{said}");
    }
    let output = listener(&["listen"]);
    assert!(!output.status.success() && text(&output).contains("say `--brokers HOST:PORT`"));
}
