// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Signals`]: the signals to stop that this process passes on to its command.

use std::io::{self, IsTerminal as _};

use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{self, SignalKind, signal};

/// Receives SIGTERM, SIGHUP and SIGINT, which no longer end this process.
pub(super) struct Signals {
    terminate: unix::Signal,
    hang_up: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for a signal that this process must pass on to the command.
    pub(super) async fn next(&mut self) -> Signal {
        loop {
            let (signal, from_terminal) = tokio::select! {
                Some(()) = self.terminate.recv() => (Signal::TERM, false),
                Some(()) = self.hang_up.recv() => (Signal::HUP, false),
                Some(()) = self.interrupt.recv() => (Signal::INT, io::stdin().is_terminal()),
                else => std::future::pending().await,
            };
            // If stdin is a terminal, the interrupt came from the terminal, and the command has
            // received it too.
            if !from_terminal {
                return signal;
            }
        }
    }
}

/// Sends a signal to a command whose exit status this process has not read yet. If the command has
/// already ended, the signal has no effect.
pub(super) fn send(signal: Signal, to: Option<u32>) {
    let pid = to.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, signal);
    }
}
