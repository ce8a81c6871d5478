// SPDX-License-Identifier: MIT OR Apache-2.0
//! What private servers of tests have in common: a free port, a process that dies with its test,
//! and the end of a log.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Wraps a command so that its process dies when the thread that starts it ends, for example
/// because this process was killed. Without `setpriv`, the command stays unchanged.
pub(crate) fn tied(command: &[String]) -> Vec<String> {
    const SETPRIV: &str = "/usr/bin/setpriv";
    let mut words = Vec::new();
    if Path::new(SETPRIV).exists() {
        words.extend([SETPRIV, "--pdeathsig", "KILL", "--"].map(String::from));
    }
    words.extend_from_slice(command);
    words
}

/// Returns a free port below the range from which the system assigns ports, so the port is still
/// free when a server restarts.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    loop {
        // Let concurrent test processes begin at different ports. Otherwise, one process could take
        // a port as soon as another process has released it.
        let step = NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id() as usize * 97;
        let port = 10_000 + u16::try_from(step % 9_000).unwrap_or_default();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Returns the last eight lines of a log, joined into one line.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join(" | ")
}
