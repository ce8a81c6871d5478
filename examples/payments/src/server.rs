// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service as a child process: started, watched until it listens, killed, started again.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::BoxError;

/// A running service.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) process: u32,
}

impl Server {
    /// Starts this program again as a service on `store`, logging to the end of `log`. Port 0 picks
    /// a free port.
    pub(crate) async fn start(
        listen: SocketAddr,
        store: &str,
        apart: bool,
        log: &Path,
    ) -> Result<Self, BoxError> {
        let log = File::options().create(true).append(true).open(log)?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--no-page", "--listen", &listen.to_string()])
            .args(apart.then_some("--apart"))
            .env(crate::STORE, store)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let process = child.id().ok_or("the service ended at once")?;
        let stdout = child.stdout.take().ok_or("the service has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let first = timeout(Duration::from_secs(20), lines.next_line())
            .await
            .map_err(|_| "the service did not start")?;
        let line = first?.ok_or("the service ended at its start; see its log")?;
        let address = line
            .strip_prefix("listening on http://")
            .ok_or("the service said something else")?
            .parse()?;
        // The rest of its output is not needed, but its pipe must not fill up.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { child, address, process })
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) async fn kill(mut self) -> Result<(), BoxError> {
        Ok(self.child.kill().await?)
    }
}
