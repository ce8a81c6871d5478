// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can happen next.

use crate::slot::Print;
use crate::state::{Phase, Protocol, Stage, State};

/// What becomes of a call to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It takes effect and is answered.
    Answered,
    /// It takes effect, and the answer is lost.
    Unanswered,
    /// It does not arrive now; if there is room on the wire, perhaps later.
    Undelivered,
}

/// One step of the world. `client` is an index into [`State::clients`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "in every variant, the fields are the client, its identity and its fate"
)]
pub enum Action {
    /// The store's clock moves on; sleepers whose time has come wake.
    Tick,
    /// A client without a call begins one: its first acquire.
    Begin { client: u8, identity: u8, print: Print, fate: Fate },
    /// An awake waiter looks (and acquires, if free); an acquire in doubt is repeated with the same
    /// owner (ACQ-9).
    Ask { client: u8, fate: Fate },
    /// An acquire that stays in doubt is given up, or its caller is dropped: a release in the
    /// background (ACQ-9, ACQ-11).
    GiveUpAcquire { client: u8, fate: Fate },
    /// A caller is dropped in its wait, or before its action's first poll: released (RUN-5,
    /// ACQ-11).
    Drop { client: u8, fate: Fate },
    /// The action is polled for the first time.
    Start { client: u8 },
    /// A beat extends the lease (RUN-1).
    Beat { client: u8, fate: Fate },
    /// `max-hold`: beats end, the action goes on (RUN-6).
    StopBeats { client: u8 },
    /// The action returns; beats end (RUN-3).
    Return { client: u8, tombstone: bool },
    /// The action fails: released (RUN-4).
    Fail { client: u8, fate: Fate },
    /// Dropped during the action, or `Hold`: no beat, no release, the lease runs out (RUN-5,
    /// HTTP-7).
    Abandon { client: u8 },
    /// The completion is sent, or repeated with the same owner (CMP-3).
    Complete { client: u8, fate: Fate },
    /// A completion in doubt is answered by the policy; it goes on in the background (CMP-3,
    /// CMP-4).
    GiveUp { client: u8 },
    /// The message under way arrives.
    Deliver,
    /// The wake-up meant for one goes to this sleeper (ACQ-3).
    Wake { client: u8 },
    /// The client's process dies.
    Crash { client: u8 },
    /// The store drops the identity's record if its time is over (STO-4).
    Purge { identity: u8 },
    /// A deaf waiter falls asleep: only with a lost wake-up planted.
    Sleep { client: u8 },
    /// A free record that was read is written: only with get-then-set planted.
    Claim { client: u8 },
}

impl Protocol {
    /// Collects what may happen in `state`. A superset: [`step`](Self::step) decides.
    pub fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        use Fate::{Answered, Unanswered, Undelivered};
        if !state.wrong.is_empty() {
            return;
        }
        actions.push(Action::Tick);
        actions.push(Action::Deliver);
        actions.extend((0..self.bounds.identities).map(|identity| Action::Purge { identity }));
        for client in 0..self.bounds.clients {
            let begins = |identity, print| {
                [Answered, Unanswered, Undelivered].map(|fate| Action::Begin {
                    client,
                    identity,
                    print,
                    fate,
                })
            };
            match state.clients[usize::from(client)].phase {
                Phase::Idle | Phase::Ended { .. } => {
                    for identity in 0..self.bounds.identities {
                        actions.extend(begins(identity, Print(0)));
                        actions.extend(begins(identity, Print(1)));
                    }
                }
                Phase::Claiming { .. } => actions.push(Action::Claim { client }),
                Phase::Waiting { stage: Stage::Awake, .. } => {
                    actions.extend(
                        [Answered, Unanswered, Undelivered]
                            .map(|fate| Action::Ask { client, fate }),
                    );
                }
                Phase::Waiting { stage: Stage::Asleep { .. }, .. } => {
                    actions.push(Action::Wake { client })
                }
                Phase::Waiting { stage: Stage::Deaf { .. }, .. } => {
                    actions.push(Action::Sleep { client })
                }
                Phase::AcquireDoubt { .. } => {
                    actions.push(Action::Ask { client, fate: Answered });
                    actions.extend(
                        [Answered, Undelivered].map(|fate| Action::GiveUpAcquire { client, fate }),
                    );
                }
                Phase::Granted => actions.push(Action::Start { client }),
                Phase::Running { .. } => {
                    actions.push(Action::StopBeats { client });
                    actions.extend(
                        [false, true].map(|tombstone| Action::Return { client, tombstone }),
                    );
                    actions
                        .extend([Answered, Undelivered].map(|fate| Action::Fail { client, fate }));
                    actions.push(Action::Abandon { client });
                }
                Phase::Acted { .. } | Phase::CompleteDoubt { .. } => {
                    actions.extend(
                        [Answered, Unanswered, Undelivered]
                            .map(|fate| Action::Complete { client, fate }),
                    );
                    actions.push(Action::GiveUp { client });
                }
                Phase::Dead => continue,
            }
            actions.extend([Answered, Undelivered].map(|fate| Action::Drop { client, fate }));
            actions.extend([Answered, Undelivered].map(|fate| Action::Beat { client, fate }));
            actions.push(Action::Crash { client });
        }
    }
}
