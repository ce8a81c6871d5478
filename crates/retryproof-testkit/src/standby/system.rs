// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the group needs of the system: the server's programs, its user, and its processes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Returns the processes that a process has started.
pub(super) fn children(parent: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if state_and_parent(pid).is_some_and(|(_, of)| of == parent) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Sends a signal to processes, some of which may have ended.
pub(super) fn send(signal: &str, processes: &[u32]) -> io::Result<()> {
    let mut command = Command::new("kill");
    command.args(["-s", signal, "--"]).args(processes.iter().map(u32::to_string));
    command.stderr(Stdio::null()).status().map(drop)
}

/// Stops a process with SIGSTOP, and returns when it has stopped or ended.
#[expect(clippy::disallowed_methods, reason = "the system does not tell when a process stops")]
pub(super) fn stop(process: u32) -> io::Result<()> {
    send("STOP", &[process])?;
    // A stopped process is in the state T, and one that has ended in the state Z.
    while state_and_parent(process).is_some_and(|(state, _)| !matches!(state, 'T' | 'Z')) {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns the letter of a process's state, and its parent; `None` if there is no such process.
fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, can contain blanks.
    let mut after_name = stat.rsplit(')').next()?.split_whitespace();
    Some((after_name.next()?.chars().next()?, after_name.next()?.parse().ok()?))
}

/// Returns the folder of the newest installed server, which Debian keeps outside of PATH.
pub(super) fn programs() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    let holds = |folder: &PathBuf| {
        ["initdb", "postgres", "pg_basebackup", "psql"]
            .iter()
            .all(|name| folder.join(name).exists())
    };
    let found = debian.filter(holds).max();
    found.or_else(|| std::env::split_paths(&path).find(holds)).ok_or_else(|| {
        io::Error::other("PostgreSQL is not installed; run `cargo xtask services up postgres`")
    })
}

/// Returns the user `postgres` if this process runs as root, because the server refuses to.
pub(super) fn user() -> io::Result<Option<(u32, u32)>> {
    if fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find_map(|line| line.strip_prefix("postgres:"));
    let mut ids = line.unwrap_or_default().split(':').skip(1).map(str::parse);
    match (ids.next(), ids.next()) {
        (Some(Ok(uid)), Some(Ok(gid))) => Ok(Some((uid, gid))),
        _ => Err(io::Error::other("root must not run PostgreSQL, and there is no user `postgres`")),
    }
}
