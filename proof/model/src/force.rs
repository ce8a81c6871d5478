// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Slot::force`]: what an operator may do to a record (OPS-3, OPS-4).
//!
//! The judge of the kill tests uses it (S18). The protocol's transition function does not.

use crate::slot::{Done, Owner, Record, Slot, Tick, Token, Value};

/// An intervention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Force {
    /// The token that the operator saw.
    pub seen: Token,
    /// What to do.
    pub verb: Verb,
    /// Whether a release or a resolve may end a live lease.
    pub even_if_live: bool,
}

/// The four verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Deletes a record in progress.
    Release,
    /// Completes a record in progress.
    Resolve {
        /// The owner of the complete record, which no holder has.
        by: Owner,
        /// The operator's result.
        value: Value,
        /// How long the result is kept, from now.
        ttl: Tick,
    },
    /// Deletes a complete record.
    Forget,
    /// Replaces a result with a tombstone.
    Erase,
}

/// The store's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forced {
    /// The record was changed, now or by an earlier attempt of the same request.
    Applied,
    /// The lease runs.
    Live {
        /// The remaining time of the lease.
        remaining: Tick,
    },
    /// The record is in progress, and its lease is over.
    Unfinished,
    /// The record is complete.
    Finished,
    /// The key was granted again since the operator looked.
    AnotherToken(Token),
    /// No record.
    Absent,
}

impl Slot {
    /// Returns the state that `force` at `now` leaves, and its answer, in one atomic step. An
    /// expired record still exists until a purge removes it.
    #[must_use]
    pub fn force(self, now: Tick, force: Force) -> (Self, Forced) {
        let ends = matches!(force.verb, Verb::Release | Verb::Resolve { .. });
        // A record has the newest token, because each later grant would have replaced the record.
        if self.record != Record::Absent && force.seen != self.last {
            return (self, Forced::AnotherToken(self.last));
        }
        let record = match (self.record, force.verb) {
            (Record::Absent, _) => return (self, Forced::Absent),
            (Record::InProgress(held), _)
                if now < held.expires && !(ends && force.even_if_live) =>
            {
                return (self, Forced::Live { remaining: held.expires - now });
            }
            (Record::InProgress(_), Verb::Release) | (Record::Complete(_), Verb::Forget) => {
                Record::Absent
            }
            (Record::InProgress(held), Verb::Resolve { by, value, ttl }) => {
                Record::Complete(Done { owner: by, value, print: held.print, expires: now + ttl })
            }
            (Record::InProgress(_), Verb::Forget | Verb::Erase) => {
                return (self, Forced::Unfinished);
            }
            (Record::Complete(done), Verb::Resolve { by, .. }) if done.owner == by => {
                return (self, Forced::Applied);
            }
            (Record::Complete(_), Verb::Release | Verb::Resolve { .. }) => {
                return (self, Forced::Finished);
            }
            (Record::Complete(done), Verb::Erase) => {
                Record::Complete(Done { value: Value::Tombstone, ..done })
            }
        };
        (Self { record, ..self }, Forced::Applied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Op};

    const HOLDER: Owner = Owner(1);
    const OPERATOR: Owner = Owner(9);

    /// Returns a lease from 0 to 3 under token 1.
    fn held() -> Slot {
        let ask = Op::Acquire { owner: HOLDER, lease: 3, ttl: 9, print: None };
        Slot::default().step(0, ask).0
    }

    fn done() -> Slot {
        held().step(1, Op::Complete { owner: HOLDER, value: Value::Result(7), ttl: 9 }).0
    }

    fn verbs() -> [Verb; 4] {
        let resolve = Verb::Resolve { by: OPERATOR, value: Value::Result(8), ttl: 9 };
        [Verb::Release, resolve, Verb::Forget, Verb::Erase]
    }

    fn force(slot: Slot, now: Tick, seen: u16, verb: Verb, even_if_live: bool) -> (Slot, Forced) {
        slot.force(now, Force { seen: Token(seen), verb, even_if_live })
    }

    #[test]
    fn ops_3_an_intervention_compares_token_state_and_lease() {
        for verb in verbs() {
            let ends = matches!(verb, Verb::Release | Verb::Resolve { .. });
            let at = |slot, now, seen, even| force(slot, now, seen, verb, even).1;
            assert_eq!(at(Slot::default(), 0, 1, true), Forced::Absent);
            for slot in [held(), done()] {
                assert_eq!(at(slot, 2, 4, true), Forced::AnotherToken(Token(1)));
            }
            assert_eq!(at(held(), 2, 1, false), Forced::Live { remaining: 1 });
            let live = if ends { Forced::Applied } else { Forced::Live { remaining: 1 } };
            assert_eq!(at(held(), 2, 1, true), live);
            let dead = if ends { Forced::Applied } else { Forced::Unfinished };
            assert_eq!(at(held(), 3, 1, false), dead);
            assert_eq!(
                at(done(), 2, 1, true),
                if ends { Forced::Finished } else { Forced::Applied }
            );
        }
    }

    #[test]
    fn ops_4_what_an_intervention_leaves() {
        let [release, resolve, forget, erase] = verbs();
        let complete = |slot: Slot| {
            slot.step(3, Op::Complete { owner: HOLDER, value: Value::Result(7), ttl: 9 }).1
        };
        let left = force(held(), 3, 1, release, false).0;
        assert_eq!(left, Slot { record: Record::Absent, last: Token(1) });
        let left = force(held(), 3, 1, resolve, false).0;
        let value = Value::Result(8);
        assert_eq!(left.step(3, Op::Look).1, Answer::Complete { value, print: None });
        assert_eq!(complete(left), Answer::Fenced(crate::Fenced::Lost));
        assert_eq!(force(left, 4, 1, resolve, false), (left, Forced::Applied));
        assert_eq!(force(done(), 2, 1, forget, false).0.record, Record::Absent);
        let left = force(done(), 2, 1, erase, false).0;
        let value = Value::Tombstone;
        assert_eq!(left.step(2, Op::Look).1, Answer::Complete { value, print: None });
        assert_eq!(complete(left), Answer::Fenced(crate::Fenced::AlreadyDone));
    }
}
