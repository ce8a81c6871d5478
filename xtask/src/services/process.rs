// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of this machine, by process id. The id alone proves nothing, because another process
//! can get it after the first one has ended.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns when a process began, in the kernel's ticks since the system's start. `None` if the
/// process is gone or only waits to be reaped.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    began(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the start time from `pid (name) state ppid ...`, where it is the 22nd field; the name may
/// contain spaces and brackets.
fn began(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Returns whether the process's working folder is inside `folder`, which is true for each of our
/// servers. Returns `false` if this user may not read the working folder.
pub(super) fn works_in(pid: u32, folder: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
}

/// Returns the process in the first line of a server's own pid file.
pub(super) fn from_file(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.lines().next()?.trim().parse().ok()
}

/// Sends a signal, by name without `SIG`. Uses the shell's own `kill`, because minimal machines
/// have no other.
pub(super) fn signal(pid: u32, name: &str) -> io::Result<()> {
    let kill = format!("kill -{name} {pid}");
    Command::new("sh")
        .args(["-c", &kill])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_begin_is_read_behind_any_name_and_a_zombie_has_none() {
        let stat = |name: &str, state: &str| {
            format!("7 ({name}) {state} 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711 99 0\n")
        };
        assert_eq!(began(&stat("postgres", "S")), Some(4711));
        assert_eq!(began(&stat("a ) S 1 (b", "R")), Some(4711));
        assert_eq!(began(&stat("postgres", "Z")), None);
        assert_eq!(began("7 (x) S 1"), None);
        assert_eq!(began(""), None);
    }

    #[test]
    fn we_run_and_work_where_we_are_and_nowhere_else() {
        let me = std::process::id();
        let here = std::env::current_dir().expect("a folder").canonicalize().expect("its path");
        assert!(start_time(me).is_some_and(|ticks| ticks > 0));
        assert!(works_in(me, &here));
        assert!(!works_in(me, &here.join("elsewhere")));
        assert_eq!(start_time(u32::MAX), None);
    }
}
