// SPDX-License-Identifier: MIT OR Apache-2.0
//! Acquire and wait: the loop of every caller.

use super::{Step, spend};
use crate::action::Fate;
use crate::defect::Defect;
use crate::property::{Sight, Wrong};
use crate::slot::{Answer, NEVER, Op, Print, Record, Tick, Token, Value};
use crate::state::{Client, Message, Outcome, Phase, Stage, Wakeup};

impl Step<'_> {
    pub(super) fn begin(
        &mut self,
        client: u8,
        identity: u8,
        print: Print,
        fate: Fate,
    ) -> Option<()> {
        if self.phase(client).in_call() || self.phase(client) == Phase::Dead {
            return None;
        }
        spend(&mut self.s.left.calls)?;
        if print != Print(0) {
            spend(&mut self.s.left.strangers)?;
        }
        let (owner, skew) = (self.fresh_owner(), self.client(client).skew);
        *self.client_mut(client) = Client {
            phase: Phase::Idle,
            owner,
            identity,
            print,
            skew,
            granted: false,
            recorded: false,
        };
        self.acquire(client, fate, self.s.now + self.rules.bounds.wait)
    }

    pub(super) fn ask(&mut self, client: u8, fate: Fate) -> Option<()> {
        match (self.phase(client), fate) {
            (Phase::AcquireDoubt { deadline }, Fate::Answered) => {
                self.acquire(client, fate, deadline)
            }
            (Phase::Waiting { deadline, stage: Stage::Awake, refused }, _) => {
                if self.flawed(Defect::WaiterBlind) && self.s.now >= deadline {
                    return self.end(client, Outcome::InFlight);
                }
                match (refused, fate) {
                    (false, _) => self.acquire(client, fate, deadline),
                    (true, Fate::Answered) => {
                        let answer = self.call(self.client(client).identity, 0, Op::Look);
                        self.meet(client, deadline, answer)
                    }
                    // The look was lost, so nothing changes: the client still has to look.
                    (true, _) => None,
                }
            }
            _ => None,
        }
    }

    fn acquire(&mut self, client: u8, fate: Fate, deadline: Tick) -> Option<()> {
        let Client { owner, identity, print, skew, .. } = self.client(client);
        let op = self.acquire_op(owner, print);
        match fate {
            Fate::Answered if self.flawed(Defect::GetThenSet) => {
                let answer = self.call(identity, skew, Op::Look);
                if answer == Answer::Absent {
                    let took_over = matches!(self.slot(identity).record, Record::InProgress(_));
                    return self.enter(client, Phase::Claiming { took_over });
                }
                self.meet(client, deadline, answer)
            }
            Fate::Answered => {
                let answer = self.call(identity, skew, op);
                self.meet(client, deadline, answer)
            }
            Fate::Unanswered => {
                spend(&mut self.s.left.losses)?;
                self.call(identity, skew, op);
                self.enter(client, Phase::AcquireDoubt { deadline })
            }
            Fate::Undelivered => {
                spend(&mut self.s.left.losses)?;
                if self.rules.bounds.late_acquires {
                    self.post(Message::Acquire(owner, identity, print))?;
                }
                self.enter(client, Phase::AcquireDoubt { deadline })
            }
        }
    }

    /// Lets a waiting client react to an answer: it is granted the lease, returns the result,
    /// answers "in flight" at its deadline, or sleeps.
    fn meet(&mut self, client: u8, deadline: Tick, answer: Answer) -> Option<()> {
        let refused = matches!(self.phase(client), Phase::Waiting { refused: true, .. });
        match answer {
            Answer::Granted { .. } => self.enter(client, Phase::Granted),
            Answer::Busy { remaining, .. } => {
                if self.s.now >= deadline && !self.flawed(Defect::DeadlineIgnored) {
                    return self.end(client, Outcome::InFlight);
                }
                self.keep_waiting(client, deadline, self.s.now + remaining, refused)
            }
            Answer::Complete { value, print } => self.meet_result(client, value, print),
            // CMP-2: only a refused caller looks without acquiring. The record is gone, and the
            // caller's own result is not stored.
            _ => {
                self.see(Sight::RefusedAlone);
                let identity = self.client(client).identity;
                self.end(client, Outcome::Executed { recorded: false })?;
                // The caller leaves a free record without acquiring it, so it passes the wake-up on
                // to a caller that may acquire.
                self.pass_on(identity, !self.flawed(Defect::WakeSpent))
            }
        }
    }

    fn keep_waiting(
        &mut self,
        client: u8,
        deadline: Tick,
        lease_end: Tick,
        refused: bool,
    ) -> Option<()> {
        let until = if self.flawed(Defect::SleepForever) {
            NEVER
        } else if self.flawed(Defect::DeadlineIgnored) {
            lease_end
        } else {
            lease_end.min(deadline)
        };
        // ACQ-4: the first look came before the subscription, so the caller does not sleep after
        // it. After a look while subscribed, the caller sleeps.
        let stage = match self.phase(client) {
            Phase::Waiting { .. } if self.flawed(Defect::WakeLost) => Stage::Deaf { until },
            Phase::Waiting { .. } => Stage::Asleep { until },
            _ => Stage::Awake,
        };
        let late =
            self.s.now >= deadline || matches!(stage, Stage::Asleep { until } if until > deadline);
        if late && !self.flawed(Defect::SleepForever) {
            self.s.wrong |= Wrong::DeadlinePassed.into();
        }
        self.enter(client, Phase::Waiting { deadline, stage, refused })
    }

    fn meet_result(&mut self, client: u8, value: Value, stored: Option<Print>) -> Option<()> {
        let Client { print, identity, phase, .. } = self.client(client);
        let waited = matches!(phase, Phase::Waiting { refused: false, .. });
        // FP-1, FP-2: compare the fingerprints before the value is decoded. In this model, every
        // caller and every record has a fingerprint.
        if stored.is_some_and(|stored| stored != print) && !self.flawed(Defect::PrintIgnored) {
            if self.flawed(Defect::MismatchAfterRun) {
                return self.enter(client, Phase::Granted);
            }
            self.see(if waited { Sight::MismatchAfterWait } else { Sight::Mismatch });
            return self.end(client, Outcome::Mismatch);
        }
        if stored.is_some_and(|stored| stored != print) {
            self.s.wrong |= Wrong::PrintUnjudged.into();
        }
        match value {
            Value::Tombstone => {
                self.see(Sight::NotReplayable);
                self.end(client, Outcome::NotReplayable)
            }
            Value::Result(number) => {
                self.s.wrong |= Wrong::Bled.unless(number / 256 == u16::from(identity));
                self.see(match phase {
                    Phase::Waiting { refused: true, .. } => Sight::RefusedReplayed,
                    Phase::Waiting { .. } => Sight::ReplayAfterWait,
                    _ => Sight::Replay,
                });
                self.end(client, Outcome::Replayed)
            }
        }
    }

    pub(super) fn drop_waiter(&mut self, client: u8) -> Option<()> {
        let identity = self.client(client).identity;
        let awake = matches!(self.phase(client), Phase::Waiting { stage: Stage::Awake, .. });
        self.end(client, Outcome::Dropped)?;
        self.pass_on(identity, awake)
    }

    /// ACQ-5: if the waiter that looks on behalf of all waiters leaves without having acquired, it
    /// passes the wake-up on.
    pub(super) fn pass_on(&mut self, identity: u8, was_awake: bool) -> Option<()> {
        let shared = self.rules.bounds.wakeup == Wakeup::One;
        if shared && was_awake && !self.flawed(Defect::WakeKept) && self.sleepers(identity) {
            self.s.baton[usize::from(identity)] = true;
            self.see(Sight::WakePassedOn);
        }
        Some(())
    }

    pub(super) fn wake(&mut self, client: u8) -> Option<()> {
        let identity = usize::from(self.client(client).identity);
        match &mut self.client_mut(client).phase {
            Phase::Waiting { stage: stage @ Stage::Asleep { .. }, .. } => *stage = Stage::Awake,
            _ => return None,
        }
        std::mem::take(&mut self.s.baton[identity]).then_some(())
    }

    pub(super) fn claim(&mut self, client: u8) -> Option<()> {
        let Phase::Claiming { took_over } = self.phase(client) else { return None };
        let Client { owner, identity, print, .. } = self.client(client);
        let (bounds, slot) = (self.rules.bounds, self.slot(identity));
        let token = Token(slot.last.0 + 1);
        let after = slot.hold(
            self.s.now,
            (owner, token, took_over),
            (bounds.lease, bounds.ttl),
            Some(print),
        );
        let op = self.acquire_op(owner, print);
        self.settle(identity, op, Answer::Granted { token, took_over }, after);
        self.enter(client, Phase::Granted)
    }
}
