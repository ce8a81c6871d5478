// SPDX-License-Identifier: MIT OR Apache-2.0
//! The history of an identity, which follows from the answers alone, and what this history allows
//! for the next answer.

use crate::property::{Wrong, Wrongs};
use crate::slot::{Answer, Fenced, Op, Owner, Print, Record, Slot, Tick, Token, Value};

/// The last lease that was granted and not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// The owner that got the lease.
    pub owner: Owner,
    /// The token of the grant.
    pub token: Token,
    /// The end of the lease, according to the grant and to the extensions that were answered
    /// `Done`.
    pub expires: Tick,
    /// The time until which the record must not be purged.
    pub keep_until: Tick,
    /// The holder's fingerprint.
    pub print: Option<Print>,
    /// Whether the grant was a takeover (ACQ-12).
    pub took_over: bool,
}

/// The value that was accepted in this epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Accepted {
    /// The owner that completed.
    pub owner: Owner,
    /// The value.
    pub value: Value,
    /// The fingerprint of the holder that completed.
    pub print: Option<Print>,
    /// The time until which the value must be replayed.
    pub until: Tick,
}

/// The history that follows from the answers so far. An epoch begins with a grant that found no
/// record, and ends when there is no record again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Truth {
    /// The holder, or the last one if it has not released its lease.
    pub holder: Option<Holder>,
    /// The accepted value.
    pub accepted: Option<Accepted>,
    /// The largest token that was granted.
    pub top: Token,
}

impl Truth {
    /// Returns the accepted value, if its ttl is not over at `now`.
    #[must_use]
    pub fn live(&self, now: Tick) -> Option<Accepted> {
        self.accepted.filter(|accepted| now < accepted.until)
    }

    /// Returns whether a lease runs at `now`.
    #[must_use]
    pub fn held(&self, now: Tick) -> bool {
        self.holder.is_some_and(|holder| now < holder.expires)
    }

    /// Returns whether another owner's lease runs at `now`.
    #[must_use]
    pub fn held_against(&self, owner: Owner, now: Tick) -> bool {
        self.holder.is_some_and(|holder| holder.owner != owner && now < holder.expires)
    }

    /// Checks the answer to `op` at `now` (by the store's clock) and the state `after` it, and adds
    /// both to the history.
    pub(crate) fn judge(&mut self, now: Tick, op: Op, answer: Answer, after: Slot) -> Wrongs {
        let live = self.live(now);
        let mut wrong = match (op, answer) {
            (Op::Acquire { owner, lease, ttl, print }, Answer::Granted { token, took_over }) => {
                let wrong = self.judge_grant(now, owner, token, took_over);
                let (took_over, expires, keep_until) =
                    (self.takes_over(owner), now + lease, now + ttl);
                self.holder = Some(Holder { owner, token, expires, keep_until, print, took_over });
                self.accepted = None;
                self.top = self.top.max(token);
                wrong
            }
            (Op::Acquire { owner, .. }, Answer::Busy { token, .. }) => {
                let held = self.held_against(owner, now)
                    && self.holder.is_some_and(|holder| holder.token == token);
                Wrong::InFlightUntrue.unless(held)
            }
            (Op::Look, Answer::Busy { token, .. }) => Wrong::InFlightUntrue.unless(
                self.holder.is_some_and(|holder| holder.token == token && now < holder.expires),
            ),
            (Op::Acquire { .. } | Op::Look, Answer::Complete { value, print }) => {
                Wrong::ReplayDiffers
                    .unless(live.is_some_and(|a| a.value == value && a.print == print))
            }
            (Op::Look, Answer::Absent) => Wrong::ResultChanged.unless(live.is_none()),
            (Op::Extend { owner, lease }, Answer::Fenced(fenced)) => {
                self.judge_extend(now, owner, lease, fenced)
            }
            (Op::Complete { owner, value, ttl }, Answer::Fenced(fenced)) => {
                self.judge_complete(now, owner, value, ttl, fenced)
            }
            (Op::Release { owner }, Answer::Fenced(fenced)) => {
                self.judge_release(now, owner, fenced)
            }
            (Op::Purge, Answer::Purged(removed)) => self.judge_purge(now, removed),
            _ => Wrong::RecordUntrue.into(),
        };
        // S5: no call changes a live result.
        if let Some(a) = live {
            let stands = matches!(after.record, Record::Complete(done)
                if (done.owner, done.value, done.print, done.expires) == (a.owner, a.value, a.print, a.until));
            wrong |= Wrong::ResultChanged.unless(stands);
        }
        wrong | Wrong::RecordUntrue.unless(self.agrees(now, after))
    }

    /// Returns whether a grant to `owner` is a takeover of another owner's lease, or repeats such a
    /// takeover.
    fn takes_over(&self, owner: Owner) -> bool {
        self.holder.is_some_and(|holder| holder.owner != owner || holder.took_over)
    }

    fn judge_grant(&self, now: Tick, owner: Owner, token: Token, took_over: bool) -> Wrongs {
        let mine = self.holder.filter(|holder| holder.owner == owner);
        let token_right = match mine {
            Some(holder) => token == holder.token,
            None => token > self.top,
        };
        Wrong::RanAfterCompletion.unless(self.live(now).is_none())
            | Wrong::TookOverEarly.unless(!self.held_against(owner, now))
            | Wrong::TokenOrder.unless(token_right)
            | Wrong::AttemptUntold.unless(took_over == self.takes_over(owner))
    }

    fn judge_extend(&mut self, now: Tick, owner: Owner, lease: Tick, fenced: Fenced) -> Wrongs {
        let mine = self.holder.is_some_and(|holder| holder.owner == owner);
        match (fenced, &mut self.holder) {
            (Fenced::Done, Some(holder)) if mine => {
                holder.expires = now + lease;
                Wrongs::default()
            }
            (Fenced::Done, _) => Wrong::Revived.into(),
            (_, _) => Wrong::OwnRefused.unless(!mine),
        }
    }

    fn judge_complete(
        &mut self,
        now: Tick,
        owner: Owner,
        value: Value,
        ttl: Tick,
        fenced: Fenced,
    ) -> Wrongs {
        let mine = self.holder.filter(|holder| holder.owner == owner);
        let before = self.live(now);
        match fenced {
            Fenced::Done => {
                let wrong = Wrong::StaleAccepted.unless(mine.is_some())
                    | Wrong::TwoValues
                        .unless(before.is_none_or(|a| a.owner == owner && a.value == value));
                let print = self.holder.and_then(|holder| holder.print);
                self.accepted = Some(Accepted { owner, value, print, until: now + ttl });
                self.holder = None;
                wrong
            }
            Fenced::AlreadyDone => Wrong::StaleAccepted
                .unless(self.accepted.is_some_and(|a| a.owner == owner && a.value == value)),
            // `Lost` is wrong for the owner that is still recorded (CMP-2), and for an owner that
            // completed before (CMP-3).
            Fenced::Lost => {
                Wrong::OwnRefused.unless(mine.is_none() && before.is_none_or(|a| a.owner != owner))
            }
        }
    }

    fn judge_release(&mut self, now: Tick, owner: Owner, fenced: Fenced) -> Wrongs {
        let mine = self.holder.is_some_and(|holder| holder.owner == owner);
        match fenced {
            Fenced::Done => {
                self.holder = None;
                Wrong::StaleAccepted.unless(mine)
            }
            Fenced::AlreadyDone => {
                Wrong::OwnRefused.unless(self.holder.is_none() && self.live(now).is_none())
            }
            Fenced::Lost => Wrong::OwnRefused.unless(!mine),
        }
    }

    fn judge_purge(&mut self, now: Tick, removed: bool) -> Wrongs {
        if !removed {
            return Wrongs::default();
        }
        let due = self.live(now).is_none()
            && self.holder.is_none_or(|holder| now >= holder.expires && now >= holder.keep_until);
        self.holder = None;
        self.accepted = None;
        Wrong::PurgedLive.unless(due)
    }

    /// S13: the record shows exactly what the answers say, so a refused call has changed nothing.
    fn agrees(&self, now: Tick, slot: Slot) -> bool {
        match slot.record {
            Record::InProgress(held) => self.holder.is_some_and(|holder| {
                (holder.owner, holder.token, holder.expires, holder.print)
                    == (held.owner, held.token, held.expires, held.print)
            }),
            Record::Complete(done) => {
                self.holder.is_none() && self.accepted.is_some_and(|a| a.value == done.value)
            }
            Record::Absent => self.holder.is_none() && self.live(now).is_none(),
        }
    }
}
