// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the world: the clock, the records, the clients, the message under way, the budgets,
//! and the history beside them.

use crate::defect::Defect;
use crate::property::Wrongs;
use crate::slot::{Owner, Print, Slot, Tick};
use crate::truth::Truth;

/// The number of clients in a state. Clients beyond [`Bounds::clients`] are dead from the start.
pub const CLIENTS: usize = 4;

/// The largest number of identities in a state.
pub const IDENTITIES: usize = 2;

/// Which waiters a release wakes (ACQ-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wakeup {
    /// Every waiter is woken, because clients belong to different processes, each with its own wait
    /// on the store.
    Every,
    /// Any one of the waiters is woken, because the clients of one process share a wait (ACQ-5). No
    /// client crashes alone.
    One,
}

/// The bounds of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The number of clients, at most [`CLIENTS`].
    pub clients: u8,
    /// The number of identities, at most [`IDENTITIES`].
    pub identities: u8,
    /// The length of a lease.
    pub lease: Tick,
    /// How long a result is kept.
    pub ttl: Tick,
    /// How long a duplicate waits.
    pub wait: Tick,
    /// Which waiters a release wakes.
    pub wakeup: Wakeup,
    /// How far the first client's clock is ahead of the store's (S14); nothing may depend on it.
    pub skew: Tick,
    /// Whether a lost acquire may still arrive after its owner has repeated it, got an answer, or
    /// given up.
    pub late_acquires: bool,
    /// How often each kind of event may happen.
    pub budget: Budget,
}

impl Bounds {
    /// Creates bounds with lease 2, ttl 3 and wait 2, the smallest lengths with which a lease can
    /// end during a wait and before a result's ttl. The budgets are for a run of some seconds.
    #[must_use]
    pub fn new(clients: u8) -> Self {
        Self {
            clients,
            identities: 1,
            lease: 2,
            ttl: 3,
            wait: 2,
            wakeup: Wakeup::Every,
            skew: 0,
            late_acquires: false,
            budget: Budget { calls: 4, strangers: 1, tombstones: 1, crashes: 1, losses: 2 },
        }
    }
}

/// How often each kind of event may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Budget {
    /// Calls, each with a new owner.
    pub calls: u8,
    /// Calls, among those above, with another fingerprint.
    pub strangers: u8,
    /// Actions whose value cannot be stored.
    pub tombstones: u8,
    /// Crashes of clients, which do not restart.
    pub crashes: u8,
    /// Messages or answers that get lost.
    pub losses: u8,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The action ran and returned.
    Executed {
        /// Whether the client knows that the result is stored (CMP-4).
        recorded: bool,
    },
    /// The stored result of another run.
    Replayed,
    /// The record is a tombstone.
    NotReplayable,
    /// The holder was still running at the end of the wait.
    InFlight,
    /// The stored result belongs to another fingerprint (FP-1).
    Mismatch,
    /// The action failed, or nothing ran because the store did not answer.
    Failed,
    /// The caller was dropped before or during the action, or holds its key because its effect is
    /// unknown (RUN-5, `Hold`).
    Dropped,
}

/// The state of a waiter between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The waiter has subscribed and is about to look.
    Awake,
    /// The waiter has looked while subscribed, and sleeps until the given time or until it is
    /// woken.
    Asleep {
        /// The end of the lease that the waiter saw, or its deadline if that is earlier.
        until: Tick,
    },
    /// The waiter has looked but not subscribed yet: only with [`Defect::WakeLost`].
    Deaf {
        /// The end of the lease that the waiter saw, or its deadline if that is earlier.
        until: Tick,
    },
}

/// The phase of a client's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No call yet.
    Idle,
    /// The client has read the record as free and will write its lease: only with
    /// [`Defect::GetThenSet`].
    Claiming {
        /// Whether the client found an expired lease.
        took_over: bool,
    },
    /// A duplicate that waits.
    Waiting {
        /// The end of the wait.
        deadline: Tick,
        /// The waiter's state between two looks.
        stage: Stage,
        /// Whether the client waits because its own completion was refused (CMP-2): then it only
        /// looks and never acquires.
        refused: bool,
    },
    /// The client has sent an acquire and has no answer (ACQ-9).
    AcquireDoubt {
        /// The end of the wait if the acquire finds a holder.
        deadline: Tick,
    },
    /// The lease is granted, and the action has not been polled yet.
    Granted,
    /// The action runs.
    Running {
        /// Whether heartbeats continue. They stop at `max-hold` (RUN-6), or after a heartbeat that
        /// found the lease lost (RUN-2).
        beating: bool,
    },
    /// The action has returned and heartbeats have ended (RUN-3); the completion is not sent yet.
    Acted {
        /// Whether the action's value cannot be stored.
        tombstone: bool,
    },
    /// The completion is sent and has no answer (CMP-3).
    CompleteDoubt {
        /// Whether the action's value cannot be stored.
        tombstone: bool,
    },
    /// The caller has its answer and may call again.
    Ended {
        /// The call's answer.
        outcome: Outcome,
        /// Marks an answer that was found after the caller's own completion had been refused
        /// (CMP-2).
        refused: bool,
    },
    /// Crashed.
    Dead,
}

impl Phase {
    /// Returns whether a call is in progress.
    #[must_use]
    pub fn in_call(self) -> bool {
        !matches!(self, Phase::Idle | Phase::Ended { .. } | Phase::Dead)
    }
}

/// A caller: a process, or a task of a shared one ([`Wakeup`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    /// The phase of its call.
    pub phase: Phase,
    /// The owner id of its present or last call.
    pub owner: Owner,
    /// The identity of its call.
    pub identity: u8,
    /// The fingerprint of its call.
    pub print: Print,
    /// How far the client's clock is ahead.
    pub skew: Tick,
    /// History: this call was granted the lease, even if the client does not know it.
    pub granted: bool,
    /// History: this call's completion was accepted, even if the client does not know it.
    pub recorded: bool,
}

/// A call that has not reached the store yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// An acquire, which its client may have repeated since.
    Acquire(Owner, u8, Print),
    /// A heartbeat.
    Beat(Owner, u8),
    /// A completion; the flag says whether it is a tombstone.
    Complete(Owner, u8, bool),
    /// A release.
    Release(Owner, u8),
}

/// The whole world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    /// The store's clock.
    pub now: Tick,
    /// The store.
    pub slots: [Slot; IDENTITIES],
    /// The callers.
    pub clients: [Client; CLIENTS],
    /// The message under way, which may arrive at any time or never.
    pub wire: Option<Message>,
    /// Whether a wake-up for one sleeper of the identity has not been given yet (ACQ-3).
    pub baton: [bool; IDENTITIES],
    /// The remaining budget.
    pub left: Budget,
    /// The history of each identity; no transition reads it.
    pub truth: [Truth; IDENTITIES],
    /// The violated properties; nothing happens after a violation.
    pub wrong: Wrongs,
}

impl State {
    /// Returns whether every call that could begin has begun and has ended. A settled state stays
    /// settled.
    ///
    /// A state with a violation counts as settled, so that one bug is reported once.
    #[must_use]
    pub fn settled(&self) -> bool {
        !self.wrong.is_empty()
            || (self.clients.iter().all(|client| !client.phase.in_call())
                && (self.left.calls == 0
                    || self.clients.iter().all(|client| client.phase == Phase::Dead)))
    }
}

/// The rules of the world: its bounds and its planted bug, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// The bounds of the world.
    pub bounds: Bounds,
    /// The planted bug.
    pub flaw: Option<Defect>,
}

impl Protocol {
    /// Creates a protocol without a bug.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, flaw: None }
    }

    /// Creates a protocol with a planted bug.
    #[must_use]
    pub fn with(self, flaw: Defect) -> Self {
        Self { flaw: Some(flaw), ..self }
    }

    /// Returns the first state: nothing is stored, and no call is in progress.
    #[must_use]
    pub fn start(&self) -> State {
        let idle = Client {
            phase: Phase::Idle,
            owner: Owner(0),
            identity: 0,
            print: Print(0),
            skew: 0,
            granted: false,
            recorded: false,
        };
        let mut clients = [Client { phase: Phase::Dead, ..idle }; CLIENTS];
        for client in clients.iter_mut().take(usize::from(self.bounds.clients)) {
            *client = idle;
        }
        clients[0].skew = self.bounds.skew;
        State {
            now: 0,
            slots: [Slot::default(); IDENTITIES],
            clients,
            wire: None,
            baton: [false; IDENTITIES],
            left: self.bounds.budget,
            truth: [Truth::default(); IDENTITIES],
            wrong: Wrongs::default(),
        }
    }
}
