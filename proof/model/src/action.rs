// SPDX-License-Identifier: MIT OR Apache-2.0
//! The actions that can happen next.

use crate::slot::Print;
use crate::state::{Phase, Protocol, Stage, State};

/// What happens to a call to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The call takes effect and is answered.
    Answered,
    /// The call takes effect, and the answer is lost.
    Unanswered,
    /// The call does not arrive now. If no other message is under way, it may arrive later.
    Undelivered,
}

/// One step of the world. `client` is an index into [`State::clients`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "in every variant, the fields are the client, its identity and its fate"
)]
pub enum Action {
    /// The store's clock advances; sleepers whose time has come wake up.
    Tick,
    /// A client without a call begins one: its first acquire.
    Begin { client: u8, identity: u8, print: Print, fate: Fate },
    /// An awake waiter looks, and acquires if the record is free. An acquire in doubt is repeated
    /// with the same owner (ACQ-9).
    Ask { client: u8, fate: Fate },
    /// An acquire that stays in doubt is given up, or its caller is dropped: the key is released in
    /// the background (ACQ-9, ACQ-11).
    GiveUpAcquire { client: u8, fate: Fate },
    /// A caller is dropped during its wait, or before its action's first poll: the key is released
    /// (RUN-5, ACQ-11).
    Drop { client: u8, fate: Fate },
    /// The action is polled for the first time.
    Start { client: u8 },
    /// A heartbeat extends the lease (RUN-1).
    Beat { client: u8, fate: Fate },
    /// `max-hold` is reached: heartbeats end, but the action continues (RUN-6).
    StopBeats { client: u8 },
    /// The action returns; heartbeats end (RUN-3).
    Return { client: u8, tombstone: bool },
    /// The action fails, and the key is released (RUN-4).
    Fail { client: u8, fate: Fate },
    /// The caller is dropped during the action, or holds its key: no heartbeat and no release
    /// follow, and the lease ends by time (RUN-5, HTTP-7).
    Abandon { client: u8 },
    /// The completion is sent, or repeated with the same owner (CMP-3).
    Complete { client: u8, fate: Fate },
    /// The policy answers the caller of a completion in doubt, which continues in the background
    /// (CMP-3, CMP-4).
    GiveUp { client: u8 },
    /// The message under way arrives.
    Deliver,
    /// This sleeper gets the wake-up that is meant for one of several (ACQ-3).
    Wake { client: u8 },
    /// The client's process dies.
    Crash { client: u8 },
    /// The store drops the identity's expired record (STO-4).
    Purge { identity: u8 },
    /// A waiter that missed the change falls asleep: only with the planted bug `WakeLost`.
    Sleep { client: u8 },
    /// A record that was read as free is written: only with the planted bug `GetThenSet`.
    Claim { client: u8 },
}

impl Protocol {
    /// Collects the actions that may be possible in `state`. The list may contain impossible ones;
    /// [`step`](Self::step) decides.
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
