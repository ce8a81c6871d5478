// SPDX-License-Identifier: MIT OR Apache-2.0
//! States that differ only in names count as one: the order of the clients, the ids of the owners,
//! the number from which the tokens count and the current time do not matter.
//!
//! This is sound because a transition compares owners only for equality, tokens only by order and
//! times only with the present, and reads nothing of a call that has ended; `tests/it/names.rs`
//! checks it state by state. The clock is part of this: although time has no bound, the number of
//! states is finite. Four clients have 24 orders, which are one state here.

use crate::defect::Defect;
use crate::slot::{NEVER, Owner, Record, Tick, Token, Value};
use crate::state::{CLIENTS, IDENTITIES, Message, Phase, Protocol, Stage, State};

/// How many owners a state can mention: those of the clients, of each identity's record, holder and
/// accepted value, and of the message under way.
const MENTIONS: usize = CLIENTS + 3 * IDENTITIES + 1;

impl State {
    /// Returns every owner that is mentioned in the state.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Owner> {
        let mut state = *self;
        let mut owners = [Owner(0); MENTIONS];
        let mut next = owners.iter_mut();
        state.each_owner(|owner| {
            if let Some(place) = next.next() {
                *place = *owner;
            }
        });
        owners.into_iter().filter(|owner| owner.0 != 0)
    }

    fn each_owner(&mut self, mut see: impl FnMut(&mut Owner)) {
        for client in &mut self.clients {
            see(&mut client.owner);
        }
        for slot in &mut self.slots {
            match &mut slot.record {
                Record::Absent => {}
                Record::InProgress(held) => see(&mut held.owner),
                Record::Complete(done) => see(&mut done.owner),
            }
        }
        for truth in &mut self.truth {
            if let Some(holder) = &mut truth.holder {
                see(&mut holder.owner);
            }
            if let Some(accepted) = &mut truth.accepted {
                see(&mut accepted.owner);
            }
        }
        match &mut self.wire {
            Some(
                Message::Acquire(owner, ..)
                | Message::Beat(owner, ..)
                | Message::Complete(owner, ..)
                | Message::Release(owner, ..),
            ) => see(owner),
            None => {}
        }
    }

    fn each_time(&mut self, mut see: impl FnMut(&mut Tick)) {
        for client in &mut self.clients {
            match &mut client.phase {
                Phase::Waiting { deadline, stage, .. } => {
                    see(deadline);
                    if let Stage::Asleep { until } | Stage::Deaf { until } = stage {
                        see(until);
                    }
                }
                Phase::AcquireDoubt { deadline } => see(deadline),
                _ => {}
            }
        }
        for slot in &mut self.slots {
            match &mut slot.record {
                Record::Absent => {}
                Record::InProgress(held) => {
                    see(&mut held.expires);
                    see(&mut held.keep_until);
                }
                Record::Complete(done) => see(&mut done.expires),
            }
        }
        for truth in &mut self.truth {
            if let Some(holder) = &mut truth.holder {
                see(&mut holder.expires);
                see(&mut holder.keep_until);
            }
            if let Some(accepted) = &mut truth.accepted {
                see(&mut accepted.until);
            }
        }
    }

    /// Visits the tokens of one identity, which are never compared with those of another identity.
    fn each_token(&mut self, identity: usize, mut see: impl FnMut(&mut Token)) {
        see(&mut self.slots[identity].last);
        if let Record::InProgress(held) = &mut self.slots[identity].record {
            see(&mut held.token);
        }
        see(&mut self.truth[identity].top);
        if let Some(holder) = &mut self.truth[identity].holder {
            see(&mut holder.token);
        }
    }

    fn each_value(&mut self, mut see: impl FnMut(&mut Value)) {
        for slot in &mut self.slots {
            if let Record::Complete(done) = &mut slot.record {
                see(&mut done.value);
            }
        }
        for accepted in self.truth.iter_mut().filter_map(|truth| truth.accepted.as_mut()) {
            see(&mut accepted.value);
        }
    }
}

impl Protocol {
    /// Returns the state that represents all states that differ from `state` only in names.
    #[must_use]
    pub fn canonical(&self, state: &State) -> State {
        let mut s = *state;
        // If the planted defect sends heartbeats after the end, the owner of an ended call still
        // matters.
        if self.flaw != Some(Defect::BeatsGoOn) {
            let idle = self.start().clients[0];
            for client in &mut s.clients {
                let phase = match client.phase {
                    Phase::Ended { .. } => Phase::Idle,
                    phase => phase,
                };
                if !phase.in_call() {
                    *client = crate::state::Client { phase, skew: client.skew, ..idle };
                }
            }
        }
        let now = std::mem::take(&mut s.now);
        s.each_time(|time| {
            if *time != NEVER {
                *time = time.saturating_sub(now);
            }
        });
        for identity in 0..IDENTITIES {
            let mut least = Token(u16::MAX);
            s.each_token(identity, |token| {
                if token.0 != 0 {
                    least = least.min(*token);
                }
            });
            s.each_token(identity, |token| token.0 -= if token.0 == 0 { 0 } else { least.0 - 1 });
        }

        let mut owners = [Owner(0); MENTIONS];
        for (place, owner) in owners.iter_mut().zip(s.owners()) {
            *place = owner;
        }
        owners.sort_unstable();
        let rank = |owner: u16| -> u16 {
            let mut before = Owner(0);
            let mut rank = 0;
            for other in owners.into_iter().filter(|other| other.0 <= owner) {
                rank += u16::from(other != before);
                before = other;
            }
            rank
        };
        s.each_owner(|owner| owner.0 = rank(owner.0));
        s.each_value(|value| {
            if let Value::Result(number) = value {
                *number = *number / 256 * 256 + rank(*number % 256);
            }
        });
        s.clients.sort_unstable();
        s
    }
}
