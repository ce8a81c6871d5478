// SPDX-License-Identifier: MIT OR Apache-2.0
//! One identity's record, and how each store call changes it.

use crate::defect::Defect;

/// The store's clock (ACQ-7), in units of the caller's choice.
pub type Tick = u16;

/// A time that never comes.
pub(crate) const NEVER: Tick = Tick::MAX;

/// The id that a client makes before its acquire (ACQ-9). 0 stands for no owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Owner(pub u16);

/// A fencing token (ACQ-10). 0 comes before the first grant.
///
/// In the model, a token counts grants. A real store issues larger numbers, so compare order and
/// equality, not values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Token(pub u16);

/// The caller's request, as a fingerprint (FP-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Print(pub u16);

/// The value that a completion stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// A result; the number represents its bytes.
    Result(u16),
    /// The work is done, but cannot be replayed (CMP-9).
    Tombstone,
}

/// An IN_PROGRESS record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held {
    /// The owner that holds the lease.
    pub owner: Owner,
    /// The fencing token of the grant.
    pub token: Token,
    /// When the lease ends: at this tick, not before.
    pub expires: Tick,
    /// The end of the ttl, counted from the acquire. A purge may not remove the record before that
    /// time (STO-4).
    pub keep_until: Tick,
    /// The holder's fingerprint.
    pub print: Option<Print>,
    /// Whether the lease was granted as a takeover, for an owner that repeats its acquire (ACQ-12).
    pub took_over: bool,
}

/// A COMPLETE record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Done {
    /// The owner that completed the record (CMP-3).
    pub owner: Owner,
    /// The result.
    pub value: Value,
    /// The holder's fingerprint.
    pub print: Option<Print>,
    /// When the ttl, counted from completion, is over (CMP-6).
    pub expires: Tick,
}

/// The states of a record. There is no state for failed work (CMP-5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Record {
    /// No record.
    #[default]
    Absent,
    /// A holder is running the work, or was when its lease ended.
    InProgress(Held),
    /// The work is done.
    Complete(Done),
}

/// A store call for one identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Grants a lease, or says why not.
    Acquire {
        /// The owner that wants the lease.
        owner: Owner,
        /// The length of the lease.
        lease: Tick,
        /// For how long, from now, a purge keeps the unfinished record.
        ttl: Tick,
        /// The caller's fingerprint.
        print: Option<Print>,
    },
    /// Reads the state of the record.
    Look,
    /// Extends the lease (RUN-1).
    Extend {
        /// The owner of the lease.
        owner: Owner,
        /// The new length, from now.
        lease: Tick,
    },
    /// Stores the result (CMP-1).
    Complete {
        /// The owner that completes.
        owner: Owner,
        /// The result.
        value: Value,
        /// For how long, from now, the result is kept.
        ttl: Tick,
    },
    /// Deletes the record of an action that failed (RUN-4).
    Release {
        /// The owner of the lease.
        owner: Owner,
    },
    /// Removes the record if it has expired (STO-4).
    Purge,
}

/// The answer to an extend, a complete or a release, which are fenced by owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// The call took effect now.
    Done,
    /// The same owner's earlier call took effect, or there is nothing to release.
    AlreadyDone,
    /// The record is not the caller's.
    Lost,
}

/// The answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Acquire: the caller gets the lease.
    Granted {
        /// Greater than all earlier tokens (ACQ-10), or the token that the same owner already had
        /// (ACQ-9).
        token: Token,
        /// Whether another owner's expired lease was taken over (ACQ-12).
        took_over: bool,
    },
    /// Acquire or look: another owner's lease runs.
    Busy {
        /// The remaining time of the lease.
        remaining: Tick,
        /// The holder's token.
        token: Token,
    },
    /// Acquire or look: the work is done.
    Complete {
        /// The result, which may be opened only after `print` was compared (FP-2).
        value: Value,
        /// The fingerprint stored with the result.
        print: Option<Print>,
    },
    /// Look: there is no record, or an expired one.
    Absent,
    /// The answer to an extend, a complete or a release.
    Fenced(Fenced),
    /// Purge: whether it removed the record.
    Purged(bool),
}

/// One identity in a store: its record and the last token issued for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Slot {
    /// The record.
    pub record: Record,
    /// The last token issued; it outlives releases and purges (ACQ-10).
    pub last: Token,
}

impl Slot {
    /// Returns the state that `op` at `now` leaves, and its answer. This is one atomic step; only
    /// `now` decides what has expired (ACQ-7).
    #[must_use]
    pub fn step(self, now: Tick, op: Op) -> (Self, Answer) {
        self.step_with(now, op, None)
    }

    /// Returns all that a correct store may do with `op` at `now`: [`step`](Self::step), and the
    /// same after a purge if a purge is due, because a store may drop expired records at any time.
    /// A property test continues with the state whose answer matches the store's answer.
    pub fn allowed(self, now: Tick, op: Op) -> impl Iterator<Item = (Self, Answer)> {
        let (purged, due) = self.step(now, Op::Purge);
        let after_purge = (due == Answer::Purged(true)).then(|| purged.step(now, op));
        std::iter::once(self.step(now, op)).chain(after_purge)
    }

    /// Returns whether a waiter that saw the token `seen` may sleep, or continue to sleep, at
    /// `now`. It may while the lease with that token runs; otherwise it looks (ACQ-4).
    #[must_use]
    pub fn may_sleep(self, now: Tick, seen: Token) -> bool {
        matches!(self.record, Record::InProgress(held) if held.token == seen && now < held.expires)
    }

    /// Like [`step`](Self::step), but for a store with a planted bug.
    #[must_use]
    pub fn step_with(self, now: Tick, op: Op, flaw: Option<Defect>) -> (Self, Answer) {
        match op {
            Op::Acquire { owner, lease, ttl, print } => {
                self.acquire(now, owner, (lease, ttl), print, flaw)
            }
            Op::Look => (self, self.look(now)),
            Op::Extend { owner, lease } => self.extend(now, owner, lease, flaw),
            Op::Complete { owner, value, ttl } => self.complete(now, owner, value, ttl, flaw),
            Op::Release { owner } => self.release(owner, flaw),
            Op::Purge => self.purge(now, flaw),
        }
    }

    fn acquire(
        self,
        now: Tick,
        owner: Owner,
        (lease, ttl): (Tick, Tick),
        print: Option<Print>,
        flaw: Option<Defect>,
    ) -> (Self, Answer) {
        let early = Tick::from(flaw == Some(Defect::EarlyTakeover));
        let forgets = Tick::from(flaw == Some(Defect::ForgetsEarly));
        let (mut token, took_over) = match self.record {
            // ACQ-9: the owner repeats its acquire, because the answer to the first one was lost.
            // It gets its lease again, even an expired one, with the same token, and the new answer
            // says whether the first grant was a takeover.
            Record::InProgress(held) if held.owner == owner => {
                (held.token, held.took_over && flaw != Some(Defect::TakeoverForgotten))
            }
            Record::InProgress(held) if now + early < held.expires => {
                return (self, Answer::Busy { remaining: held.expires - now, token: held.token });
            }
            Record::InProgress(_) => (Token(self.last.0 + 1), flaw != Some(Defect::TakeoverUntold)),
            Record::Complete(done)
                if now + forgets < done.expires || flaw == Some(Defect::ReplaysExpired) =>
            {
                return (self, Answer::Complete { value: done.value, print: done.print });
            }
            Record::Complete(_) => (Token(self.last.0 + 1), false),
            Record::Absent if flaw == Some(Defect::TokenRestarts) => (Token(1), false),
            Record::Absent => (Token(self.last.0 + 1), false),
        };
        if flaw == Some(Defect::TokenRedrawn) {
            token = Token(self.last.0 + 1);
        }
        (
            self.hold(now, (owner, token, took_over), (lease, ttl), print),
            Answer::Granted { token, took_over },
        )
    }

    /// Writes a lease without reading the record: the second half of an acquire, which happens
    /// separately only with [`Defect::GetThenSet`].
    pub(crate) fn hold(
        self,
        now: Tick,
        (owner, token, took_over): (Owner, Token, bool),
        (lease, ttl): (Tick, Tick),
        print: Option<Print>,
    ) -> Self {
        let held =
            Held { owner, token, expires: now + lease, keep_until: now + ttl, print, took_over };
        Self { record: Record::InProgress(held), last: self.last.max(token) }
    }

    fn look(self, now: Tick) -> Answer {
        match self.record {
            Record::InProgress(held) if now < held.expires => {
                Answer::Busy { remaining: held.expires - now, token: held.token }
            }
            Record::Complete(done) if now < done.expires => {
                Answer::Complete { value: done.value, print: done.print }
            }
            _ => Answer::Absent,
        }
    }

    fn extend(self, now: Tick, owner: Owner, lease: Tick, flaw: Option<Defect>) -> (Self, Answer) {
        match self.record {
            Record::InProgress(held)
                if held.owner == owner || flaw == Some(Defect::BeatAnyOwner) =>
            {
                let record = Record::InProgress(Held { expires: now + lease, ..held });
                (Self { record, ..self }, Answer::Fenced(Fenced::Done))
            }
            Record::Absent | Record::Complete(_) if flaw == Some(Defect::ExtendRevives) => (
                self.hold(now, (owner, self.last, false), (lease, lease), None),
                Answer::Fenced(Fenced::Done),
            ),
            _ => (self, Answer::Fenced(Fenced::Lost)),
        }
    }

    fn complete(
        self,
        now: Tick,
        owner: Owner,
        value: Value,
        ttl: Tick,
        flaw: Option<Defect>,
    ) -> (Self, Answer) {
        let (print, expires) = match self.record {
            Record::InProgress(held)
                if held.owner == owner || flaw == Some(Defect::NoOwnerCheck) =>
            {
                if flaw == Some(Defect::FencedByTime) && now >= held.expires {
                    return (self, Answer::Fenced(Fenced::Lost));
                }
                let from_acquire = flaw == Some(Defect::TtlFromAcquire);
                (held.print, if from_acquire { held.keep_until } else { now + ttl })
            }
            Record::Complete(done) if done.owner == owner => {
                let answer = if flaw == Some(Defect::RepeatRefused) {
                    Fenced::Lost
                } else {
                    Fenced::AlreadyDone
                };
                return (self, Answer::Fenced(answer));
            }
            Record::Complete(done) if flaw == Some(Defect::CompleteOverwrites) => {
                (done.print, now + ttl)
            }
            _ => return (self, Answer::Fenced(Fenced::Lost)),
        };
        let record = Record::Complete(Done { owner, value, print, expires });
        (Self { record, ..self }, Answer::Fenced(Fenced::Done))
    }

    fn release(self, owner: Owner, flaw: Option<Defect>) -> (Self, Answer) {
        match self.record {
            Record::Absent => (self, Answer::Fenced(Fenced::AlreadyDone)),
            Record::InProgress(held) if held.owner == owner => {
                (Self { record: Record::Absent, ..self }, Answer::Fenced(Fenced::Done))
            }
            _ if flaw == Some(Defect::ReleaseAnyOwner) => {
                (Self { record: Record::Absent, ..self }, Answer::Fenced(Fenced::Done))
            }
            _ => (self, Answer::Fenced(Fenced::Lost)),
        }
    }

    fn purge(self, now: Tick, flaw: Option<Defect>) -> (Self, Answer) {
        let due = match self.record {
            Record::Absent => false,
            Record::InProgress(held) => {
                now >= held.expires && (now >= held.keep_until || flaw == Some(Defect::PurgeEager))
            }
            Record::Complete(done) => now >= done.expires,
        };
        let record = if due { Record::Absent } else { self.record };
        (Self { record, ..self }, Answer::Purged(due))
    }
}
