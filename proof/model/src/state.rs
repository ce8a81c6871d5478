// SPDX-License-Identifier: MIT OR Apache-2.0
//! What there is: the clock, the records, the clients, one message under way, budgets, and the
//! history beside them.

use crate::defect::Defect;
use crate::property::Wrongs;
use crate::slot::{Owner, Print, Slot, Tick};
use crate::truth::Truth;

/// The most clients a state holds; those beyond [`Bounds::clients`] are dead from the start.
pub const CLIENTS: usize = 4;

/// The most identities a state holds.
pub const IDENTITIES: usize = 2;

/// Who is woken by a release (ACQ-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wakeup {
    /// Every waiter: clients of different processes, each with its own wait on the store.
    Every,
    /// One of them, whichever: clients of one process that share a flight (ACQ-5). No client
    /// crashes alone.
    One,
}

/// How large a world is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// At most [`CLIENTS`].
    pub clients: u8,
    /// At most [`IDENTITIES`].
    pub identities: u8,
    /// The length of a lease.
    pub lease: Tick,
    /// How long a result is kept.
    pub ttl: Tick,
    /// How long a duplicate waits.
    pub wait: Tick,
    /// Who is woken by a release.
    pub wakeup: Wakeup,
    /// By how much the first client's clock is ahead of the store's (S14); nothing may depend on
    /// it.
    pub skew: Tick,
    /// Whether an acquire that got lost may still arrive, after its owner asked again, was answered
    /// or gave up.
    pub late_acquires: bool,
    /// What may happen how often.
    pub budget: Budget,
}

impl Bounds {
    /// Lease 2, ttl 3, wait 2: the smallest lengths at which a lease can run out during a wait,
    /// before a result's ttl does. Budgets and clock are for a run of seconds.
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

/// What may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Budget {
    /// Calls, each with an owner of its own.
    pub calls: u8,
    /// Calls among them with another fingerprint.
    pub strangers: u8,
    /// Actions whose value cannot be stored.
    pub tombstones: u8,
    /// Crashes of a client, for good.
    pub crashes: u8,
    /// Messages or answers that get lost.
    pub losses: u8,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The action ran and returned.
    Executed {
        /// Whether the result is known to be stored (CMP-4).
        recorded: bool,
    },
    /// The stored result of another run.
    Replayed,
    /// There is a tombstone.
    NotReplayable,
    /// The holder outlasted the wait.
    InFlight,
    /// The stored result belongs to another fingerprint (FP-1).
    Mismatch,
    /// The action failed, or nothing ran since the store did not answer.
    Failed,
    /// The caller went away: before the action, during it, or with its effect unknown (RUN-5,
    /// `Hold`).
    Dropped,
}

/// Where a waiter stands between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Subscribed, about to look.
    Awake,
    /// Looked while subscribed, and sleeps until then or until it is woken.
    Asleep {
        /// The end of the lease it saw, or its deadline if that is earlier.
        until: Tick,
    },
    /// Looked, and not subscribed yet: only with [`Defect::WakeLost`].
    Deaf {
        /// As in `Asleep`.
        until: Tick,
    },
}

/// Where a client's call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No call yet.
    Idle,
    /// Read the record as free, and will write its lease: only with [`Defect::GetThenSet`].
    Claiming {
        /// Whether it found an expired lease.
        took_over: bool,
    },
    /// A duplicate in its wait.
    Waiting {
        /// The end of the wait.
        deadline: Tick,
        /// Between two looks.
        stage: Stage,
        /// Whether it waits because its own completion was refused (CMP-2): it looks, and never
        /// acquires.
        refused: bool,
    },
    /// Acquire sent, no answer (ACQ-9).
    AcquireDoubt {
        /// The end of the wait, should it find a holder.
        deadline: Tick,
    },
    /// Lease granted, action not polled yet.
    Granted,
    /// The action runs.
    Running {
        /// Whether beats go on: not after `max-hold` (RUN-6) or a beat that found the lease lost
        /// (RUN-2).
        beating: bool,
    },
    /// The action returned, beats have ended (RUN-3), completion not sent.
    Acted {
        /// Whether its value cannot be stored.
        tombstone: bool,
    },
    /// Completion sent, no answer (CMP-3).
    CompleteDoubt {
        /// As in `Acted`.
        tombstone: bool,
    },
    /// The caller has its answer and may call again.
    Ended {
        /// Its answer.
        outcome: Outcome,
        /// The mark of an answer that was found after the own completion had been refused (CMP-2).
        refused: bool,
    },
    /// Crashed.
    Dead,
}

impl Phase {
    /// Whether a call is going on.
    #[must_use]
    pub fn in_call(self) -> bool {
        !matches!(self, Phase::Idle | Phase::Ended { .. } | Phase::Dead)
    }
}

/// A caller: a process, or a task of a shared one ([`Wakeup`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    /// Where its call stands.
    pub phase: Phase,
    /// The owner of its present or last call.
    pub owner: Owner,
    /// Which identity it asks for.
    pub identity: u8,
    /// What it sends.
    pub print: Print,
    /// How far its clock is ahead.
    pub skew: Tick,
    /// History: this call was granted the lease, known or not.
    pub granted: bool,
    /// History: this call's completion was accepted, known or not.
    pub recorded: bool,
}

/// A call that has not reached the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// An acquire whose client may have asked again since.
    Acquire(Owner, u8, Print),
    /// A beat.
    Beat(Owner, u8),
    /// A completion, of a tombstone if so said.
    Complete(Owner, u8, bool),
    /// A release.
    Release(Owner, u8),
}

/// Everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    /// The store's clock.
    pub now: Tick,
    /// The store.
    pub slots: [Slot; IDENTITIES],
    /// The callers.
    pub clients: [Client; CLIENTS],
    /// A message under way: it arrives at any time, or never.
    pub wire: Option<Message>,
    /// A wake-up meant for one sleeper of the identity, not yet given (ACQ-3).
    pub baton: [bool; IDENTITIES],
    /// What may still happen.
    pub left: Budget,
    /// What did happen; no transition reads it.
    pub truth: [Truth; IDENTITIES],
    /// What has gone wrong; nothing happens after that.
    pub wrong: Wrongs,
}

impl State {
    /// Whether every call that could begin has begun and has ended. It stays so.
    ///
    /// A state that has gone wrong counts as settled, so that one fault is told as one.
    #[must_use]
    pub fn settled(&self) -> bool {
        !self.wrong.is_empty()
            || (self.clients.iter().all(|client| !client.phase.in_call())
                && (self.left.calls == 0
                    || self.clients.iter().all(|client| client.phase == Phase::Dead)))
    }
}

/// The rules of the world: its bounds, and the bug that is planted in it, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// How large it is.
    pub bounds: Bounds,
    /// The planted bug.
    pub flaw: Option<Defect>,
}

impl Protocol {
    /// As the rules want it.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, flaw: None }
    }

    /// With a planted bug.
    #[must_use]
    pub fn with(self, flaw: Defect) -> Self {
        Self { flaw: Some(flaw), ..self }
    }

    /// The beginning: nothing is stored, and no caller works.
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
