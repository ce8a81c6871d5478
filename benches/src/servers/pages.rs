// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restarts PostgreSQL with its shared buffers on huge pages, or on pages of the usual size.
//!
//! Only the suite `growth` does this, because no other program may use the server at that time.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, test_kill_process, waitpid};

use super::{text, variable};
use crate::compare::now;

/// How long the server may take to end, and to serve again.
const WITHIN: Duration = Duration::from_secs(60);

/// The pages on which PostgreSQL keeps its shared buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferPages {
    Usual,
    Huge,
}

impl BufferPages {
    /// The value of the setting `huge_pages`.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Self::Usual => "off",
            Self::Huge => "on",
        }
    }
}

/// Returns why a server that needs so many huge pages cannot have them, or `None` if the machine
/// has reserved enough.
pub(crate) fn missing(needed: i64) -> Option<String> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let reserved = reserved(&meminfo);
    (reserved < needed).then(|| {
        format!(
            "the machine has reserved {reserved} huge pages, and the server needs {needed} \
             (`sysctl vm.nr_hugepages={needed}`)"
        )
    })
}

fn reserved(meminfo: &str) -> i64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Total:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Shuts the server down in an orderly way, and starts it again on the same port with the same
/// data. Returns before the server serves; its clients have to connect again.
///
/// # Errors
/// Fails if `cargo xtask services up` did not start the server, or if the server does not end.
pub(crate) fn restart() -> Result<(), String> {
    let get = |what: &str| {
        let name = format!("RETRYPROOF_SERVER_POSTGRES_{what}");
        variable(&name).ok_or_else(|| {
            format!(
                "cannot restart PostgreSQL, because {name} is not set: run `cargo xtask services up \
                 postgres`"
            )
        })
    };
    let (pid_file, start) = (get("PID_FILE")?, get("START")?);
    let old = pid(Path::new(&pid_file))?;
    end(old)?;
    let mut command = Command::new(start);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(drop).map_err(|error| format!("cannot start PostgreSQL again: {error}"))
}

/// Ends PostgreSQL with SIGINT, on which it closes its connections instead of waiting for clients.
#[expect(clippy::disallowed_methods, reason = "another process may have started the server")]
fn end(server: Pid) -> Result<(), String> {
    kill_process(server, Signal::INT).map_err(text)?;
    let began = now();
    while test_kill_process(server).is_ok() {
        if began.elapsed() > WITHIN {
            return Err(format!("PostgreSQL did not end within {WITHIN:?}"));
        }
        std::thread::sleep(Duration::from_millis(50));
        // After a first restart, the server is a child of this process, and would stay a zombie.
        // Before that, this call fails, which changes nothing.
        let _ = waitpid(Some(server), WaitOptions::NOHANG);
    }
    Ok(())
}

/// Reads the process id in the first line of a pid file.
fn pid(file: &Path) -> Result<Pid, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
    pid.and_then(Pid::from_raw).ok_or_else(|| format!("{} has no process id", file.display()))
}

/// Repeats `connect` until the server serves.
///
/// # Errors
/// The last error of `connect`, when the server does not serve in time.
pub(crate) async fn until_served<T>(
    mut connect: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, String> {
    let began = now();
    loop {
        match connect().await {
            Err(_) if began.elapsed() < WITHIN => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_pages_are_read() {
        assert_eq!(reserved("MemFree: 1 kB\nHugePages_Total:    2300\nHugePages_Free: 1\n"), 2_300);
        assert_eq!((reserved("HugePages_Total:       0\n"), reserved("")), (0, 0));
    }

    #[test]
    fn a_server_that_this_process_started_ends_too() {
        let mut server = Command::new("sleep").arg("600").spawn().expect("started");
        let ended = end(Pid::from_child(&server));
        // Usually, `end` has already ended the process, so nothing is left to kill or to wait for.
        let _ = (server.kill(), server.wait());
        ended.expect("a zombie counts as ended");
    }

    #[test]
    fn too_few_pages_are_a_reason_that_says_what_to_do() {
        let why = missing(i64::MAX).expect("no machine has so many");
        assert!(why.contains("vm.nr_hugepages=9223372036854775807"), "{why}");
        assert_eq!(missing(0), None);
    }
}
