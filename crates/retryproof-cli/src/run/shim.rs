// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a command in two steps. This program starts itself again as a helper process, which sets
//! the parent-death signal (on Linux) and then becomes the command. The signal stays set when the
//! helper becomes the command.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use retryproof::OwnerId;

use crate::exit;

/// The argument that marks a helper process.
const SHIM: &str = "__exec";

/// Becomes the command if `arguments` are those of a helper process. Returns an exit code if the
/// command cannot be started, and `None` for other arguments.
pub(crate) fn start(mut arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    if arguments.nth(1)? != SHIM {
        return None;
    }
    let (parent, marker, program) = (arguments.next()?, arguments.next()?, arguments.next()?);
    let error = become_command(&parent, &program, arguments);
    let report = format!("{}{}\n", marker.to_string_lossy(), error.raw_os_error().unwrap_or(0));
    let _ = io::stderr().write_all(report.as_bytes());
    Some(exit::RUN_FAILED)
}

fn become_command(
    parent: &OsStr,
    program: &OsStr,
    arguments: impl Iterator<Item = OsString>,
) -> io::Error {
    if let Err(error) = die_with_parent() {
        return error;
    }
    // If the parent died before `die_with_parent` took effect, no signal arrives. Therefore, check
    // that the parent is still the same process.
    let still = rustix::process::getppid().map(|pid| pid.as_raw_pid().to_string());
    if still.as_deref().map(OsStr::new) != Some(parent) {
        return io::Error::other("the parent process has ended");
    }
    Command::new(program).args(arguments).exec()
}

#[cfg(target_os = "linux")]
fn die_with_parent() -> io::Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};

    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature as on Linux")]
fn die_with_parent() -> io::Result<()> {
    Ok(())
}

/// Finds the report of a helper process that could not become the command. The report is then the
/// only output on stderr: a text that no command prints by accident, and the number of the error.
pub(super) struct StartReport {
    marker: String,
    /// Bytes that may be the beginning of a report. `None` as soon as the output cannot be a
    /// report.
    pending: Option<Vec<u8>>,
}

impl StartReport {
    pub(super) fn new() -> Self {
        let random = OwnerId::new();
        let digits: String = random.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { marker: format!("retryproof-start-{digits}:"), pending: Some(Vec::new()) }
    }

    /// Returns the first part of the command line that starts this program again.
    pub(super) fn command(&self) -> io::Result<Command> {
        let mut command = Command::new(own_program()?);
        command.args([SHIM, &std::process::id().to_string(), &self.marker]);
        Ok(command)
    }

    /// Returns the bytes of stderr that can be passed on, and holds back bytes that may be a
    /// report.
    pub(super) fn filter(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Some(pending) = &mut self.pending else { return bytes.to_vec() };
        pending.extend_from_slice(bytes);
        let marker = self.marker.as_bytes();
        let common = pending.len().min(marker.len());
        if pending[..common] == marker[..common] {
            return Vec::new();
        }
        self.pending.take().unwrap_or_default()
    }

    /// Returns the error if the command could not start, or else the bytes that were held back.
    /// Call this function at the end of stderr.
    pub(super) fn end(self) -> Result<Vec<u8>, io::Error> {
        let held_back = self.pending.unwrap_or_default();
        let report = std::str::from_utf8(&held_back).ok();
        match report.and_then(|report| report.strip_prefix(self.marker.as_str())) {
            Some(number) => Err(match number.trim_end().parse() {
                Ok(number) if number > 0 => io::Error::from_raw_os_error(number),
                _ => io::Error::other("the helper process of `retryproof run` failed"),
            }),
            None => Ok(held_back),
        }
    }
}

/// Returns the path of this program's own file. On Linux, the path works even if an upgrade has
/// replaced the file since the program started.
fn own_program() -> io::Result<PathBuf> {
    let link = PathBuf::from("/proc/self/exe");
    if cfg!(target_os = "linux") && link.exists() { Ok(link) } else { std::env::current_exe() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_told_from_the_output_of_a_command() {
        let mut failed = StartReport::new();
        let report = format!("{}2\n", failed.marker);
        let (first, rest) = report.split_at(5);
        assert!(failed.filter(first.as_bytes()).is_empty());
        assert!(failed.filter(rest.as_bytes()).is_empty());
        assert_eq!(failed.end().unwrap_err().kind(), io::ErrorKind::NotFound);

        let mut running = StartReport::new();
        assert!(running.filter(b"retry").is_empty());
        assert_eq!(running.filter(b"ing\n"), b"retrying\n");
        assert_eq!(running.filter(b"retryproof-start-"), b"retryproof-start-");
        assert!(running.end().unwrap().is_empty());

        let mut short = StartReport::new();
        assert!(short.filter(b"re").is_empty());
        assert_eq!(short.end().unwrap(), b"re");
    }

    #[test]
    fn other_arguments_are_not_a_second_start() {
        let arguments = ["retryproof", "run", "s", "k"].map(OsString::from);
        assert_eq!(start(arguments.into_iter()), None);
    }
}
