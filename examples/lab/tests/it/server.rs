// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lab as a child process.

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::place::Place;

/// A running lab; killed when dropped.
pub(crate) struct Lab {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The store that `start` created. It is dropped after the process that uses it.
    place: Option<Place>,
}

impl Lab {
    /// Starts a lab on a new store, of the kind that `RETRYPROOF_LAB_STORE` names, or in memory.
    pub(crate) async fn start() -> Self {
        let place = Place::new();
        let mut lab = Self::start_on(&place.url).await;
        lab.place = Some(place);
        lab
    }

    pub(crate) async fn start_on(store: &str) -> Self {
        Self::start_with(&["--store", store], &[]).await
    }

    pub(crate) async fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child =
            command(args, variables).stderr(Stdio::null()).spawn().expect("the lab starts");
        let stdout = child.stdout.take().expect("its output is piped");
        let mut lines = BufReader::new(stdout).lines();
        let first =
            timeout(Duration::from_secs(20), lines.next_line()).await.expect("it starts in time");
        let line = first.expect("its output is text").expect("it says where it listens");
        let address =
            line.strip_prefix("listening on http://").expect("as lab.md says").parse().unwrap();
        Self { child, address, place: None }
    }

    pub(crate) fn process(&self) -> String {
        self.child.id().expect("it runs").to_string()
    }

    /// Sends a signal by name, as `kill` does.
    pub(crate) async fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.process()]).status().await;
        assert!(sent.expect("kill is there").success());
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("it was running");
    }

    pub(crate) async fn exit(mut self, within: Duration) -> ExitStatus {
        timeout(within, self.child.wait())
            .await
            .expect("it exits in time")
            .expect("it can be waited for")
    }
}

/// Returns the web framework of the lab, if it is not the default one.
fn framework() -> Option<String> {
    std::env::var("RETRYPROOF_LAB_FRAMEWORK").ok()
}

pub(crate) fn on_actix() -> bool {
    framework().is_some_and(|name| name == "actix")
}

fn command(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command
        .args(["--listen", "127.0.0.1:0"])
        .args(framework().iter().flat_map(|name| ["--framework", name]))
        .args(args)
        .env_remove("IDEMPOTENCY_STORE")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs a lab that refuses to start, and returns its exit code and its standard error.
pub(crate) async fn refusal(args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut child =
        command(args, variables).stderr(Stdio::piped()).spawn().expect("the lab starts");
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("its errors are piped");
    let ended = timeout(Duration::from_secs(20), async {
        stderr.read_to_string(&mut said).await.expect("its errors are text");
        child.wait().await.expect("it can be waited for").code()
    });
    let code = ended.await.expect("it refuses in time");
    (code, said)
}
