// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Log`]: a process's part of the history.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use history::{Event, Fun, Journal, Phase};
use retryproof::Identity;

use crate::mono;

/// Returns the name of the file for the events of one life of one process.
pub(crate) fn name(proc: u32, incarnation: u32) -> String {
    format!("events-{proc:03}-{incarnation:05}.jsonl")
}

/// Writes the events of one process.
#[derive(Debug)]
pub(crate) struct Log {
    journal: Journal,
    who: (u32, u32),
    ops: AtomicU64,
}

impl Log {
    pub(crate) fn open(folder: &Path, proc: u32, incarnation: u32) -> io::Result<Self> {
        let journal = Journal::open(folder.join(name(proc, incarnation)))?;
        Ok(Self { journal, who: (proc, incarnation), ops: AtomicU64::new(1) })
    }

    /// Returns a new number for an operation or a call.
    pub(crate) fn number(&self) -> u64 {
        self.ops.fetch_add(1, Ordering::Relaxed)
    }

    /// Creates an event at the present time.
    pub(crate) fn event(&self, op: u64, fun: Fun, phase: Phase) -> Event {
        Event::new(self.who, op, fun, phase, mono::now())
    }

    /// Creates an event of an identity at the present time.
    pub(crate) fn of(&self, op: u64, fun: Fun, phase: Phase, identity: &Identity) -> Event {
        Event {
            scope: Some(identity.scope().as_str().to_owned()),
            key: Some(identity.key().expose().to_owned()),
            ..self.event(op, fun, phase)
        }
    }

    /// Writes an event. If that fails, ends the process, because the judge would miss what happened
    /// in a gap of the history.
    pub(crate) fn write(&self, event: &Event) {
        if let Err(error) = self.journal.write(event) {
            eprintln!("cannot write the history: {error}");
            std::process::exit(3);
        }
    }
}
