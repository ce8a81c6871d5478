// SPDX-License-Identifier: MIT OR Apache-2.0
//! A call to the store: the record, the checks, the wake-ups.

use super::Step;
use crate::defect::Defect;
use crate::property::{Sight, Wrong};
use crate::slot::{Answer, Fenced, Op, Owner, Record, Slot, Tick};
use crate::state::{Client, IDENTITIES, Outcome, Phase, Stage, Wakeup};

impl Step<'_> {
    /// Makes one call to the store, for a caller whose clock is `skew` ahead.
    pub(super) fn call(&mut self, identity: u8, skew: Tick, op: Op) -> Answer {
        let skew = if self.flawed(Defect::ClientClock) { skew } else { 0 };
        let (after, answer) = self.slot(identity).step_with(self.s.now + skew, op, self.rules.flaw);
        self.settle(identity, op, answer, after);
        answer
    }

    /// Stores the slot that a call has left, checks it, and updates the clients that it concerns.
    pub(super) fn settle(&mut self, identity: u8, op: Op, answer: Answer, after: Slot) {
        let (index, before) = (usize::from(identity), self.slot(identity));
        self.s.wrong |= self.s.truth[index].judge(self.s.now, op, answer, after);
        self.s.slots[self.place(identity)] = after;
        match (op, answer) {
            (Op::Acquire { owner, .. }, Answer::Granted { took_over, .. }) => {
                self.see_grant(owner, before.record, took_over);
                self.callers(owner).for_each(|client| client.granted = true);
            }
            (Op::Complete { owner, .. }, Answer::Fenced(Fenced::Done)) => {
                let returned = self.callers(owner).all(|client| may_complete(client.phase));
                self.s.wrong |= Wrong::FailureCompleted.unless(returned);
                self.callers(owner).for_each(|client| client.recorded = true);
                self.wake_all(identity);
            }
            (Op::Release { owner }, Answer::Fenced(Fenced::Done)) => {
                let returned = self.callers(owner).any(|client| has_returned(client.phase));
                self.s.wrong |= Wrong::ReleasedAfterReturn.unless(!returned);
                match self.rules.bounds.wakeup {
                    Wakeup::Every => self.wake_all(identity),
                    Wakeup::One => self.s.baton[index] = self.sleepers(identity),
                }
            }
            _ => {}
        }
    }

    fn see_grant(&mut self, owner: Owner, before: Record, took_over: bool) {
        let in_phase =
            |of: fn(Phase) -> bool| self.s.clients.iter().any(|c| c.owner == owner && of(c.phase));
        let waited = in_phase(|phase| matches!(phase, Phase::Waiting { .. }));
        let at_work =
            in_phase(|phase| matches!(phase, Phase::Running { .. }) || has_returned(phase));
        match before {
            Record::InProgress(held) if held.owner == owner => return self.see(Sight::Regrant),
            Record::InProgress(_) if took_over => self.see(Sight::Takeover),
            Record::InProgress(_) => {}
            Record::Complete(_) => self.see(Sight::AgainAfterTtl),
            Record::Absent if waited => self.see(Sight::ReleasedToWaiter),
            Record::Absent => {}
        }
        if took_over && waited {
            self.see(Sight::TakeoverInWait);
        }
        if at_work {
            self.see(Sight::Returned);
        }
    }

    /// Returns the client whose present call has this owner, if there is one.
    fn callers(&mut self, owner: Owner) -> impl Iterator<Item = &mut Client> {
        self.s.clients.iter_mut().filter(move |client| client.owner == owner)
    }

    fn wake_all(&mut self, identity: u8) {
        for client in self.s.clients.iter_mut().filter(|c| c.identity == identity) {
            if let Phase::Waiting { stage: stage @ Stage::Asleep { .. }, .. } = &mut client.phase {
                *stage = Stage::Awake;
            }
        }
        self.s.baton[usize::from(identity)] = false;
    }

    /// L2, L3: checks in every state that a sleeper sees a running lease, or that another caller is
    /// about to look.
    pub(super) fn check_sleepers(&mut self) {
        for identity in 0..IDENTITIES {
            let asked = |c: &&Client| usize::from(c.identity) == identity;
            let mut sleepers = self.s.clients.iter().filter(asked).filter_map(|c| match c.phase {
                Phase::Waiting { stage: Stage::Asleep { until }, .. } => Some(until),
                _ => None,
            });
            let Some(first) = sleepers.next() else {
                self.s.baton[identity] = false;
                continue;
            };
            let on_time = std::iter::once(first).chain(sleepers).all(|until| self.s.now < until);
            let held = self.s.truth[identity].held(self.s.now);
            let awake = self.s.clients.iter().filter(asked).any(|c| {
                matches!(
                    c.phase,
                    Phase::Waiting { stage: Stage::Awake, .. }
                        | Phase::AcquireDoubt { .. }
                        | Phase::Claiming { .. }
                )
            });
            self.s.wrong |= Wrong::SleeperForgotten
                .unless(on_time && (held || awake || self.s.baton[identity]));
        }
    }
}

/// Returns whether the action has returned and its completion has no answer yet.
pub(super) fn has_returned(phase: Phase) -> bool {
    matches!(phase, Phase::Acted { .. } | Phase::CompleteDoubt { .. })
}

/// S16: if a completion is under way, its client has returned, was answered without waiting for the
/// completion, or died.
fn may_complete(phase: Phase) -> bool {
    let answered = matches!(phase, Phase::Ended { outcome: Outcome::Executed { .. }, .. });
    has_returned(phase) || answered || phase == Phase::Dead
}
