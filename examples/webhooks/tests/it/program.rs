// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program as a newcomer runs it.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use retryproof_testkit::folder::Folder;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use webhooks::signature::Secret;

use crate::world::{PATIENCE, client, now, paid};

fn webhooks(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_webhooks"));
    command.args(args).stdin(Stdio::null()).kill_on_drop(true).env("NO_PROXY", "127.0.0.1");
    command.env("WEBHOOK_SECRET", "whsec_of_the_program");
    command
}

async fn run(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    (
        status.code(),
        format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)),
    )
}

/// Returns the file with a receiver's log.
fn log(folder: &Folder) -> PathBuf {
    folder.path().join("receiver.log")
}

/// Starts a receiver with these variables, and returns the URL for its deliveries.
async fn receiver(folder: &Folder, variables: &[(&str, &str)]) -> (Child, String) {
    let db = folder.path().join("webhooks.db").display().to_string();
    let mut command = webhooks(&["serve", "--listen", "127.0.0.1:0", "--db", &db]);
    let log = File::create(log(folder)).unwrap();
    command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
    let line = line.expect("it says where it listens");
    let url = format!("{}/webhooks/payments", line.strip_prefix("listening on ").unwrap());
    (child, url)
}

#[tokio::test]
async fn http_1_by_whatever_field_the_guard_keys_it_is_the_signed_id() {
    let folder = Folder::new("webhooks").unwrap();
    let (mut receiver, url) = receiver(&folder, &[("IDEMPOTENCY_WEB_KEY_HEADER", "X-Key")]).await;
    let event = paid("evt_1", "order-17");
    let secret = Secret::new(b"whsec_of_the_program").unwrap();
    for (keys, replayed) in [(&["a"][..], false), (&["b"], true), (&[], true), (&["c", "d"], true)]
    {
        let mut delivery =
            client().post(&url).header("content-type", "application/json").body(event.clone());
        delivery = delivery.header("webhook-signature", secret.sign(now(), event.as_bytes()));
        for key in keys {
            delivery = delivery.header("x-key", *key);
        }
        let answer = delivery.send().await.unwrap();
        let (status, is_replay) =
            (answer.status(), answer.headers().contains_key("idempotent-replayed"));
        assert_eq!((status.as_u16(), is_replay), (200, replayed), "{keys:?}");
    }
    receiver.kill().await.unwrap();
}

#[tokio::test]
async fn lst_1_of_three_deliveries_one_is_handled() {
    let folder = Folder::new("webhooks").unwrap();
    let (mut receiver, url) = receiver(&folder, &[]).await;
    let (code, said) =
        run(&mut webhooks(&["send", "--url", &url, "--id", "evt_1", "--times", "3"])).await;
    assert_eq!((code, said.matches("handled now").count()), (Some(0), 1), "{said}");
    assert_eq!(said.matches("handled before").count(), 2, "{said}");
    receiver.kill().await.unwrap();
}

#[tokio::test]
async fn id_4_what_an_event_says_is_not_logged() {
    let folder = Folder::new("webhooks").unwrap();
    let (mut receiver, url) = receiver(&folder, &[("RUST_LOG", "trace")]).await;
    let event = ["--id", "evt_of_a_log", "--order", "order-of-a-log"];
    let (code, said) = run(webhooks(&["send", "--url", &url]).args(event)).await;
    assert_eq!(code, Some(0), "{said}");
    receiver.kill().await.unwrap();
    let log = std::fs::read_to_string(log(&folder)).unwrap();
    assert!(["evt_of_a_log", "order-of-a-log"].iter().all(|part| !log.contains(part)), "{log}");
}

#[tokio::test]
async fn without_a_secret_or_with_bad_arguments_it_does_not_start() {
    for (args, part) in [
        (&["receive"][..], "receive"),
        (&[], "usage"),
        (&["serve", "--listen"], "needs a value"),
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
        assert!(
            code == Some(2) && said.contains("WEBHOOK_SECRET") && !said.contains("short\n"),
            "{said}"
        );
    }
}
