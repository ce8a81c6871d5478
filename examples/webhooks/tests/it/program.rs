// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program as a newcomer runs it.

use std::process::{Output, Stdio};

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::world::{Folder, PATIENCE};

fn webhooks(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_webhooks"));
    command.args(args).stdin(Stdio::null()).kill_on_drop(true).env("NO_PROXY", "127.0.0.1");
    command.env("WEBHOOK_SECRET", "whsec_of_the_program");
    command
}

async fn run(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

#[tokio::test]
async fn lst_1_of_three_deliveries_one_is_handled() {
    let folder = Folder::new();
    let db = folder.0.join("webhooks.db").display().to_string();
    let mut receiver = webhooks(&["serve", "--listen", "127.0.0.1:0", "--db", &db]);
    let mut receiver = receiver.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(receiver.stdout.take().unwrap()).lines();
    let line =
        timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("it says where it listens");
    let url = format!("{}/webhooks/payments", line.strip_prefix("listening on ").unwrap());
    let (code, said) = run(&mut webhooks(&["send", "--url", &url, "--id", "evt_1", "--times", "3"])).await;
    assert_eq!((code, said.matches("handled now").count()), (Some(0), 1), "{said}");
    assert_eq!(said.matches("handled before").count(), 2, "{said}");
    receiver.kill().await.unwrap();
}

#[tokio::test]
async fn without_a_secret_or_with_bad_arguments_it_does_not_start() {
    for (args, part) in [
        (&["receive"][..], "receive"),
        (&[], "usage"),
        (&["serve", "--listen"], "wants a value"),
        (&["serve", "--times", "3"], "--times"),
        (&["send", "--cents", "many"], "many"),
    ] {
        let (code, said) = run(&mut webhooks(args)).await;
        assert!(code == Some(2) && said.contains(part), "{args:?}: {said}");
    }
    for secret in [None, Some("short")] {
        let mut command = webhooks(&["serve"]);
        command.env_remove("WEBHOOK_SECRET").envs(secret.map(|secret| ("WEBHOOK_SECRET", secret)));
        let (code, said) = run(&mut command).await;
        assert!(code == Some(2) && said.contains("WEBHOOK_SECRET") && !said.contains("short\n"), "{said}");
    }
}
