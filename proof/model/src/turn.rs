// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transition function: applies one action of the clients or the store.

use crate::action::{Action, Fate};
use crate::defect::Defect;
use crate::property::{Sight, Sights, Wrong};
use crate::slot::{Answer, Op, Owner, Print, Slot, Value};
use crate::state::{Client, Message, Outcome, Phase, Protocol, Stage, State};

mod call;
mod wait;
mod work;

/// A step that was taken.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// The state after the step.
    pub state: State,
    /// What the step showed.
    pub sights: Sights,
}

impl Protocol {
    /// Returns the state after `action` in `state`, or `None` if the action is impossible there or
    /// changes nothing.
    #[must_use]
    pub fn step(&self, state: &State, action: Action) -> Option<State> {
        self.turn(state, action).map(|turn| turn.state)
    }

    /// Like [`step`](Self::step), but also returns what the step showed.
    #[must_use]
    pub fn turn(&self, state: &State, action: Action) -> Option<Turn> {
        if !state.wrong.is_empty() {
            return None;
        }
        let mut step = Step { rules: self, s: *state, sights: Sights::default() };
        step.take(action)?;
        step.check_sleepers();
        (step.s != *state).then_some(Turn { state: step.s, sights: step.sights })
    }
}

/// A state during a step.
struct Step<'a> {
    rules: &'a Protocol,
    s: State,
    sights: Sights,
}

impl Step<'_> {
    /// Applies the action. If this returns `None`, the action is impossible, and `self` must not be
    /// used any more.
    fn take(&mut self, action: Action) -> Option<()> {
        match action {
            Action::Tick => self.tick(),
            Action::Begin { client, identity, print, fate } => {
                self.begin(client, identity, print, fate)
            }
            Action::Ask { client, fate } => self.ask(client, fate),
            Action::GiveUpAcquire { client, fate } => match self.phase(client) {
                Phase::AcquireDoubt { .. } => self.let_go(client, fate, Outcome::Failed),
                _ => None,
            },
            Action::Drop { client, fate } => match (self.phase(client), fate) {
                (Phase::Granted, _) => self.let_go(client, fate, Outcome::Dropped),
                (Phase::Waiting { .. }, Fate::Answered) => self.drop_waiter(client),
                _ => None,
            },
            Action::Start { client } => self.start(client),
            Action::Beat { client, fate } => self.beat(client, fate),
            Action::StopBeats { client } => match self.phase(client) {
                Phase::Running { beating: true } => {
                    self.enter(client, Phase::Running { beating: false })
                }
                _ => None,
            },
            Action::Return { client, tombstone } => self.returns(client, tombstone),
            Action::Fail { client, fate } => self.fail(client, fate),
            Action::Abandon { client } => match self.phase(client) {
                Phase::Running { .. } => self.end(client, Outcome::Dropped),
                _ => None,
            },
            Action::Complete { client, fate } => self.complete(client, fate),
            Action::GiveUp { client } => self.give_up(client),
            Action::Deliver => self.deliver(),
            Action::Wake { client } => self.wake(client),
            Action::Crash { client } => self.crash(client),
            Action::Purge { identity } => match self.call(identity, 0, Op::Purge) {
                Answer::Purged(true) => {
                    self.see(Sight::Purged);
                    Some(())
                }
                _ => None,
            },
            Action::Sleep { client } => match self.phase(client) {
                Phase::Waiting { deadline, stage: Stage::Deaf { until }, refused } => self.enter(
                    client,
                    Phase::Waiting { deadline, stage: Stage::Asleep { until }, refused },
                ),
                _ => None,
            },
            Action::Claim { client } => self.claim(client),
        }
    }

    fn tick(&mut self) -> Option<()> {
        self.s.now += 1;
        for client in &mut self.s.clients {
            if let Phase::Waiting { stage, .. } = &mut client.phase
                && matches!(*stage, Stage::Asleep { until } if self.s.now >= until)
            {
                *stage = Stage::Awake;
            }
        }
        Some(())
    }

    fn flawed(&self, defect: Defect) -> bool {
        self.rules.flaw == Some(defect)
    }

    fn client(&self, client: u8) -> Client {
        self.s.clients[usize::from(client)]
    }

    fn client_mut(&mut self, client: u8) -> &mut Client {
        &mut self.s.clients[usize::from(client)]
    }

    fn phase(&self, client: u8) -> Phase {
        self.s.clients[usize::from(client)].phase
    }

    /// Puts the client into the phase. Always returns `Some`, so that an action can end with this
    /// call.
    fn enter(&mut self, client: u8, phase: Phase) -> Option<()> {
        self.client_mut(client).phase = phase;
        Some(())
    }

    fn see(&mut self, sight: Sight) {
        self.sights |= sight.into();
    }

    /// Answers the caller, and checks the answer. Always returns `Some`.
    fn end(&mut self, client: u8, outcome: Outcome) -> Option<()> {
        let Client { identity, phase, recorded, .. } = self.client(client);
        let refused = matches!(phase, Phase::Waiting { refused: true, .. });
        if outcome == (Outcome::Executed { recorded: true }) {
            self.s.wrong |= Wrong::RecordedUntrue.unless(recorded);
        }
        if outcome == Outcome::InFlight {
            let held = self.s.truth[usize::from(identity)].held(self.s.now);
            self.s.wrong |= Wrong::InFlightUntrue.unless(held);
            self.see(if refused { Sight::RefusedInFlight } else { Sight::InFlight });
        }
        self.enter(client, Phase::Ended { outcome, refused })
    }

    fn place(&self, identity: u8) -> usize {
        if self.flawed(Defect::IdentitiesMerged) { 0 } else { usize::from(identity) }
    }

    fn slot(&self, identity: u8) -> Slot {
        self.s.slots[self.place(identity)]
    }

    fn sleepers(&self, identity: u8) -> bool {
        self.s.clients.iter().any(|c| {
            c.identity == identity
                && matches!(c.phase, Phase::Waiting { stage: Stage::Asleep { .. }, .. })
        })
    }

    fn post(&mut self, message: Message) -> Option<()> {
        self.s.wire.is_none().then(|| self.s.wire = Some(message))
    }

    fn acquire_op(&self, owner: Owner, print: Print) -> Op {
        let bounds = self.rules.bounds;
        Op::Acquire { owner, lease: bounds.lease, ttl: bounds.ttl, print: Some(print) }
    }

    fn complete_op(&self, owner: Owner, identity: u8, tombstone: bool) -> Op {
        // S12: the number contains the owner and the identity, so the value itself shows a leak.
        let number = u16::from(identity) * 256 + owner.0;
        let value = if tombstone { Value::Tombstone } else { Value::Result(number) };
        Op::Complete { owner, value, ttl: self.rules.bounds.ttl }
    }

    /// Returns a new owner, whose number is larger than all in the state.
    fn fresh_owner(&self) -> Owner {
        Owner(self.s.owners().map(|owner| owner.0).max().unwrap_or(0) + 1)
    }
}

fn spend(budget: &mut u8) -> Option<()> {
    *budget = budget.checked_sub(1)?;
    Some(())
}
