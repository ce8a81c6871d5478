// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the command once: starts it, watches it, and stops it if the lease is lost.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use retryproof::observe::Loss;
use retryproof::{Attempt, Lease};
use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::capture::Capture;
use super::pump::{OutputTasks, Pump};
use super::shim::StartReport;
use super::signals::{self, Signals};
use crate::recording::Stream;
use crate::verbs::key::{KEY_VARIABLE, SCOPE_VARIABLE};

/// How long a command may take to stop after SIGTERM.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

/// How a command ended.
pub(super) enum CommandEnd {
    /// The command could not be started.
    NotStarted(io::Error),
    Exited(i32),
    Killed(i32),
    /// The lease was lost, and the command was stopped.
    LeaseLost(Loss),
    Unknown(io::Error),
}

/// How a command ended, and the output that it wrote.
pub(super) struct Execution {
    pub(super) end: CommandEnd,
    pub(super) capture: Capture,
    /// The tasks that may still be writing output to stdout and stderr.
    pub(super) output_tasks: OutputTasks,
}

/// Runs the command to its end. On Linux, the command is killed when the thread that started it
/// ends, so call this function on the main thread.
pub(super) async fn execute(command: &[OsString], lease: &Lease, max_output: usize) -> Execution {
    let capture = RefCell::new(Capture::new(max_output));
    let report = RefCell::new(StartReport::new());
    let (mut output_tasks, to_stdout, to_stderr) = OutputTasks::open();
    let started = Signals::new().and_then(|signals| {
        let child = start(command, lease, &report.borrow())?;
        Ok((signals, child))
    });
    let (mut signals, mut child) = match started {
        Ok(started) => started,
        Err(error) => {
            let capture = capture.into_inner();
            return Execution { end: CommandEnd::NotStarted(error), capture, output_tasks };
        }
    };
    let (has_exited, exited) = watch::channel(false);
    let pump = |stream, report, output| Pump {
        stream,
        capture: &capture,
        report,
        output,
        exited: exited.clone(),
    };
    let stdout = pump(Stream::Stdout, None, to_stdout);
    let stderr = pump(Stream::Stderr, Some(&report), to_stderr.clone());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (watched, (), ()) = tokio::join!(
        async {
            let watched = watch_child(&mut child, lease, &mut signals).await;
            has_exited.send_replace(true);
            watched
        },
        async {
            if let Some(out) = out {
                stdout.run(out).await;
            }
        },
        async {
            if let Some(err) = err {
                stderr.run(err).await;
            }
        },
    );
    let end = match (report.into_inner().end(), watched) {
        (Err(error), _) => CommandEnd::NotStarted(error),
        (Ok(held_back), watched) => {
            capture.borrow_mut().push(Stream::Stderr, &held_back);
            if !held_back.is_empty() {
                to_stderr.queue(held_back, None);
            }
            end_of(watched)
        }
    };
    output_tasks.interruptible(Some(signals));
    Execution { end, capture: capture.into_inner(), output_tasks }
}

fn start(command: &[OsString], lease: &Lease, report: &StartReport) -> io::Result<Child> {
    let identity = lease.identity();
    let attempt = match lease.attempt() {
        Attempt::First => "first",
        Attempt::Takeover => "takeover",
    };
    Command::from(report.command()?)
        .args(command)
        .env(SCOPE_VARIABLE, identity.scope().as_str())
        .env(KEY_VARIABLE, identity.key().expose())
        .env("RETRYPROOF_TOKEN", lease.token().to_string())
        .env("RETRYPROOF_ATTEMPT", attempt)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// Waits until the command ends. Meanwhile, passes signals on to it, and stops it if the lease is
/// lost.
async fn watch_child(
    child: &mut Child,
    lease: &Lease,
    signals: &mut Signals,
) -> io::Result<(ExitStatus, Option<Loss>)> {
    let (mut lost, mut kill_at) = (None, None);
    loop {
        let pid = child.id();
        let patience = kill_at.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            status = child.wait() => return Ok((status?, lost)),
            loss = lease.lost(), if lost.is_none() => {
                // Stop this command, because another process can start the same command at any
                // moment.
                lost = Some(loss);
                kill_at = Some(Instant::now() + STOPPED_WITHIN);
                signals::send(Signal::TERM, pid);
            }
            () = sleep_until(patience), if kill_at.is_some() => {
                kill_at = None;
                signals::send(Signal::KILL, pid);
            }
            signal = signals.next() => signals::send(signal, pid),
        }
    }
}

fn end_of(watched: io::Result<(ExitStatus, Option<Loss>)>) -> CommandEnd {
    match watched {
        Err(error) => CommandEnd::Unknown(error),
        Ok((_, Some(loss))) => CommandEnd::LeaseLost(loss),
        Ok((status, None)) => match (status.code(), status.signal()) {
            (Some(code), _) => CommandEnd::Exited(code),
            (None, Some(signal)) => CommandEnd::Killed(signal),
            (None, None) => CommandEnd::Unknown(io::Error::other(
                "the command ended with neither an exit code nor a signal",
            )),
        },
    }
}
