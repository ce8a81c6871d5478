// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the program on a real broker: killed at the worst moment, and in a small storm. The large
//! storm is run by hand.

use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_listener-rabbitmq");

fn run(arguments: &[&str]) -> Output {
    let output =
        Command::new(PROGRAM).args(arguments).env("NO_COLOR", "1").output().expect("it starts");
    println!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn lst_1_cmp_7_kills_and_cuts_book_every_order_once_and_put_none_off_in_a_loop() {
    let output = run(&["storm", "--orders", "500", "--kills", "3", "--cuts", "3"]);
    assert!(output.status.success() && printed(&output).contains("every promise held"));
}

#[test]
fn lst_2_cmp_7_a_listener_killed_between_completion_and_ack_is_followed_by_one_that_skips() {
    let output = run(&["last-words"]);
    assert!(output.status.success());
    let printed = printed(&output);
    assert!(printed.contains("killed after it had booked its 3rd order"), "{printed}");
    assert!(printed.contains("got the order again and replayed it"), "{printed}");
    assert!(printed.contains("booked once: 5 of 5 orders"), "{printed}");
}

#[test]
fn lst_2_the_demo_shows_what_becomes_of_each_message() {
    let printed = printed(&run(&["demo"]));
    assert_eq!(
        printed.lines().filter(|line| line.contains(" ledger executed ")).count(),
        3,
        "{printed}"
    );
    assert_eq!(
        printed.lines().filter(|line| line.contains(" ledger replayed ")).count(),
        3,
        "{printed}"
    );
    assert_eq!(
        printed.lines().filter(|line| line.contains(" receipts sent ")).count(),
        3,
        "{printed}"
    );
    for why in ["no-key", "unreadable-message", "fingerprint-mismatch"] {
        assert!(printed.contains(why), "{printed}");
    }
}

#[test]
fn an_option_that_nobody_knows_is_refused() {
    assert_eq!(run(&["storm", "--twice"]).status.code(), Some(2));
}
