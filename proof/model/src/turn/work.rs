// SPDX-License-Identifier: MIT OR Apache-2.0
//! The action, its end, and what may happen to the caller meanwhile.

use super::call::has_returned;
use super::{Step, spend};
use crate::action::Fate;
use crate::defect::Defect;
use crate::property::{Sight, Wrong};
use crate::slot::{Answer, Fenced, Op, Record};
use crate::state::{Client, Message, Outcome, Phase, Stage, Wakeup};

impl Step<'_> {
    pub(super) fn start(&mut self, client: u8) -> Option<()> {
        if self.phase(client) != Phase::Granted {
            return None;
        }
        self.s.wrong |= Wrong::RanUngranted.unless(self.client(client).granted);
        self.enter(client, Phase::Running { beating: true })
    }

    pub(super) fn beat(&mut self, client: u8, fate: Fate) -> Option<()> {
        let Client { owner, identity, phase, .. } = self.client(client);
        let due = matches!(phase, Phase::Granted | Phase::Running { beating: true });
        let ended =
            matches!(phase, Phase::Running { .. } | Phase::Ended { .. }) || has_returned(phase);
        if !(due || ended && self.flawed(Defect::BeatsGoOn)) {
            return None;
        }
        if fate == Fate::Undelivered {
            spend(&mut self.s.left.losses)?;
            return self.post(Message::Beat(owner, identity));
        }
        let late = self.lease_over(identity);
        match (self.call(identity, 0, Op::Extend { owner, lease: self.rules.bounds.lease }), phase)
        {
            (Answer::Fenced(Fenced::Done), _) => {
                self.s.wrong |= Wrong::BeatAfterEnd.unless(due);
                if late {
                    self.see(Sight::LateBeat);
                }
                Some(())
            }
            // RUN-2: the action is notified and may continue, but its completion will be refused.
            (_, Phase::Running { beating: true }) => {
                self.see(Sight::LostLease);
                self.enter(client, Phase::Running { beating: false })
            }
            _ => Some(()),
        }
    }

    pub(super) fn returns(&mut self, client: u8, tombstone: bool) -> Option<()> {
        let Phase::Running { .. } = self.phase(client) else { return None };
        if tombstone {
            spend(&mut self.s.left.tombstones)?;
        }
        if self.flawed(Defect::AckBeforeCompletion) {
            let Client { owner, identity, .. } = self.client(client);
            self.post(Message::Complete(owner, identity, tombstone))?;
            return self.end(client, Outcome::Executed { recorded: true });
        }
        self.enter(client, Phase::Acted { tombstone })
    }

    pub(super) fn fail(&mut self, client: u8, fate: Fate) -> Option<()> {
        let Phase::Running { .. } = self.phase(client) else { return None };
        if self.flawed(Defect::FailureCompletes) && fate == Fate::Answered {
            let Client { owner, identity, .. } = self.client(client);
            let op = self.complete_op(owner, identity, false);
            self.call(identity, 0, op);
            return self.end(client, Outcome::Failed);
        }
        self.let_go(client, fate, Outcome::Failed)
    }

    pub(super) fn complete(&mut self, client: u8, fate: Fate) -> Option<()> {
        let Client { owner, identity, phase, .. } = self.client(client);
        let (Phase::Acted { tombstone } | Phase::CompleteDoubt { tombstone }) = phase else {
            return None;
        };
        if self.hangs(phase) {
            return None;
        }
        let op = self.complete_op(owner, identity, tombstone);
        match fate {
            Fate::Answered => self.meet_completion(client, op),
            Fate::Unanswered => {
                spend(&mut self.s.left.losses)?;
                self.call(identity, 0, op);
                self.enter(client, Phase::CompleteDoubt { tombstone })
            }
            Fate::Undelivered => {
                spend(&mut self.s.left.losses)?;
                self.post(Message::Complete(owner, identity, tombstone))?;
                self.enter(client, Phase::CompleteDoubt { tombstone })
            }
        }
    }

    fn meet_completion(&mut self, client: u8, op: Op) -> Option<()> {
        let identity = self.client(client).identity;
        let late = self.lease_over(identity);
        match self.call(identity, 0, op) {
            Answer::Fenced(Fenced::Lost) => {
                self.see(Sight::Refused);
                // CMP-2: the caller waits once more, like a duplicate, but never acquires.
                let deadline = self.s.now + self.rules.bounds.wait;
                self.enter(client, Phase::Waiting { deadline, stage: Stage::Awake, refused: true })
            }
            Answer::Fenced(fenced) => {
                if fenced == Fenced::AlreadyDone {
                    self.see(Sight::Confirmed);
                } else if late {
                    self.see(Sight::LateCompletion);
                }
                self.end(client, Outcome::Executed { recorded: true })
            }
            _ => None,
        }
    }

    pub(super) fn give_up(&mut self, client: u8) -> Option<()> {
        let Phase::CompleteDoubt { tombstone } = self.phase(client) else { return None };
        let Client { owner, identity, phase, .. } = self.client(client);
        if self.hangs(phase) {
            return None;
        }
        if self.flawed(Defect::DoubtReleases) {
            self.call(identity, 0, Op::Release { owner });
        } else if self.s.wire.is_none() {
            // CMP-3: the completion is repeated in the background.
            self.s.wire = Some(Message::Complete(owner, identity, tombstone));
        }
        self.see(Sight::Unrecorded);
        self.end(client, Outcome::Executed { recorded: false })
    }

    fn lease_over(&self, identity: u8) -> bool {
        matches!(self.slot(identity).record, Record::InProgress(held) if self.s.now >= held.expires)
    }

    fn hangs(&self, phase: Phase) -> bool {
        self.flawed(Defect::DoubtHangs) && matches!(phase, Phase::CompleteDoubt { .. })
    }

    /// Ends the call with a release, which may be lost. If this caller was to look on behalf of
    /// sleeping callers, it passes the wake-up on, whether or not the release is lost.
    pub(super) fn let_go(&mut self, client: u8, fate: Fate, outcome: Outcome) -> Option<()> {
        let Client { owner, identity, phase, .. } = self.client(client);
        match fate {
            Fate::Answered => {
                self.call(identity, 0, Op::Release { owner });
            }
            Fate::Undelivered => {
                spend(&mut self.s.left.losses)?;
                self.post(Message::Release(owner, identity))?;
            }
            Fate::Unanswered => return None,
        }
        self.end(client, outcome)?;
        self.pass_on(identity, matches!(phase, Phase::AcquireDoubt { .. }))
    }

    pub(super) fn crash(&mut self, client: u8) -> Option<()> {
        if !self.phase(client).in_call() || self.rules.bounds.wakeup == Wakeup::One {
            return None;
        }
        spend(&mut self.s.left.crashes)?;
        self.enter(client, Phase::Dead)
    }

    pub(super) fn deliver(&mut self) -> Option<()> {
        let message = self.s.wire.take()?;
        let (identity, op) = match message {
            Message::Acquire(owner, identity, print) => (identity, self.acquire_op(owner, print)),
            Message::Beat(owner, identity) => {
                (identity, Op::Extend { owner, lease: self.rules.bounds.lease })
            }
            Message::Complete(owner, identity, tombstone) => {
                (identity, self.complete_op(owner, identity, tombstone))
            }
            Message::Release(owner, identity) => (identity, Op::Release { owner }),
        };
        match (message, self.call(identity, 0, op)) {
            (Message::Complete(..), Answer::Fenced(Fenced::Done)) => self.see(Sight::RecordedLater),
            (_, Answer::Fenced(Fenced::Lost)) => self.see(Sight::StaleArrived),
            _ => {}
        }
        Some(())
    }
}
