// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the service as a child process, waits until it listens, and kills it.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::BoxError;
use crate::storm::Plan;

/// A running service process.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) process: u32,
}

impl Server {
    /// Starts this program again as a service on `store`, with the plan's settings for servers. The
    /// service appends its log to the file `log`. Port 0 selects a free port.
    pub(crate) async fn start(
        listen: SocketAddr,
        store: &str,
        plan: &Plan,
        log: &Path,
    ) -> Result<Self, BoxError> {
        let log = File::options().create(true).append(true).open(log)?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--no-page", "--listen", &listen.to_string()])
            .args(plan.apart.then_some("--apart"))
            .args(plan.operate.iter().flat_map(|at| ["--operate".to_owned(), at.to_string()]))
            .env(crate::STORE, store)
            .env_remove(crate::RECORDS)
            .envs(plan.records.iter().map(|url| (crate::RECORDS, url)))
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
        let line = first?.ok_or("the service ended during its start; see its log")?;
        let address = line
            .strip_prefix("listening on http://")
            .ok_or("the first line of the service is not its address")?
            .parse()?;
        // Read and drop the rest of the output, because a full pipe would block the service.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { child, address, process })
    }

    /// Kills the service with SIGKILL, and waits until its process has ended.
    pub(crate) async fn kill(mut self) -> Result<(), BoxError> {
        Ok(self.child.kill().await?)
    }
}
