// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Log`]: a process's part of the history, in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use history::{Event, Fun, Phase};
use parking_lot::Mutex;
use retryproof::Identity;

use crate::mono;

/// The events of all processes, in their order.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<Vec<Event>>);

impl Events {
    /// Takes the events out of the log. Owners are random numbers, so each is replaced by the
    /// number of its first event; otherwise no two runs would be alike.
    pub(crate) fn take(&self) -> Vec<Event> {
        let mut events = std::mem::take(&mut *self.0.lock());
        let mut numbers = HashMap::new();
        for owner in events.iter_mut().filter_map(|event| event.owner.as_mut()) {
            let next = numbers.len() + 1;
            let number = *numbers.entry(owner.clone()).or_insert(next);
            *owner = format!("{number:032x}");
        }
        events
    }
}

/// Writes the events of one life of one process.
#[derive(Debug)]
pub(crate) struct Log {
    events: Arc<Events>,
    who: (u32, u32),
    ops: AtomicU64,
    dead: AtomicBool,
}

impl Log {
    pub(crate) fn new(events: &Arc<Events>, who: (u32, u32)) -> Self {
        let (ops, dead) = (AtomicU64::new(1), AtomicBool::new(false));
        Self { events: Arc::clone(events), who, ops, dead }
    }

    /// Marks the process as dead: its remaining futures write no more events.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
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

    pub(crate) fn write(&self, event: &Event) {
        if !self.is_dead() {
            self.events.0.lock().push(event.clone());
        }
    }
}
