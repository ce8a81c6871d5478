// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operators in a random history: they look at the record, and intervene later (OPS-3, OPS-4).

use history::{Event, Fun, Phase, Said};
use model::{Force, Forced, Owner, Tick, Token, Value, Verb};

use super::{Due, LONG, World, judge, ns};

/// The first number of an operator's result, and of its owner.
const GIVEN: u16 = 1_000;

/// An intervention under way.
#[derive(Clone, Copy)]
pub(super) struct Call {
    number: u64,
    force: Force,
}

pub(super) enum Turn {
    /// The operator sees a token, and sends an intervention.
    Look,
    Arrive {
        call: Call,
        heard: bool,
    },
    Hear {
        call: Call,
        forced: Forced,
    },
}

#[test]
fn ops_3_interventions_that_ignore_the_token_are_flagged() {
    let flagged = (0..2_000).any(|seed| {
        let mut world = World::new(seed, None);
        world.is_unfenced = true;
        let (judgement, _) = judge(world);
        judgement.violations.iter().any(|violation| violation.rule == "OPS-3")
    });
    assert!(flagged, "not flagged in 2,000 stories");
}

impl World {
    pub(super) fn operate(&mut self, now: Tick, turn: Turn) {
        match turn {
            Turn::Look => self.intervene(now),
            Turn::Arrive { call, heard } => {
                let force = if self.is_unfenced {
                    Force { seen: self.slot.last, even_if_live: true, ..call.force }
                } else {
                    call.force
                };
                let (slot, forced) = self.slot.force(now, force);
                self.slot = slot;
                if heard {
                    let when = now + self.random.within(0, 9);
                    self.at(when, Due::Operator(Turn::Hear { call, forced }));
                }
            }
            Turn::Hear { call, forced } => {
                let mut event = event(now, call, Phase::Ok);
                event.token = None;
                event.said = Some(match forced {
                    Forced::Applied => Said::Done,
                    Forced::Live { remaining } => {
                        event.token = Some(u64::from(call.force.seen.0));
                        event.remaining_us = Some(u64::from(remaining) * 1_000);
                        Said::Busy
                    }
                    Forced::Unfinished => Said::Unfinished,
                    Forced::Finished => Said::Finished,
                    Forced::AnotherToken(token) => {
                        event.token = Some(u64::from(token.0));
                        Said::AnotherToken
                    }
                    Forced::Absent => Said::Absent,
                });
                self.events.push(event);
            }
        }
    }

    fn intervene(&mut self, now: Tick) {
        // Sometimes the operator uses the token of an earlier grant.
        let old = u16::from(self.random.in_100(20));
        let seen = Token(self.slot.last.0.saturating_sub(old));
        if seen == Token::default() {
            return;
        }
        self.ops += 1;
        let number = self.ops;
        let given = GIVEN + u16::try_from(number).unwrap();
        let verb = match self.random.within(0, 4) {
            0 => Verb::Release,
            1 => {
                self.resolved.push((given, seen.0));
                Verb::Resolve { by: Owner(given), value: Value::Result(given), ttl: LONG }
            }
            2 => Verb::Forget,
            _ => Verb::Erase,
        };
        let force = Force { seen, verb, even_if_live: self.random.in_100(60) };
        let call = Call { number, force };
        self.events.push(event(now, call, Phase::Invoke));
        let there = now + self.random.within(0, 9);
        let is_disturbed = self.disturbed.iter().any(|(from, to)| *from <= there && now <= *to);
        let arrive = |heard| Due::Operator(Turn::Arrive { call, heard });
        match self.random.within(0, 100) {
            // The operator's process is killed.
            0..4 => {}
            4..8 => {
                let late = self.random.within(0, 1_000);
                self.at(now + late, arrive(false));
            }
            // The answer is lost, and the call is sent again over another connection.
            8..50 if is_disturbed => {
                let late = self.random.within(0, 200);
                self.at(there, arrive(false));
                self.at(there + late, arrive(true));
            }
            _ => self.at(there, arrive(true)),
        }
    }
}

fn event(now: Tick, call: Call, phase: Phase) -> Event {
    let fun = match call.force.verb {
        Verb::Release => Fun::ForceRelease,
        Verb::Resolve { .. } => Fun::ForceResolve,
        Verb::Forget => Fun::ForceForget,
        Verb::Erase => Fun::ForceErase,
    };
    let mut event = Event::new((1_000, 1), call.number, fun, phase, ns(now));
    (event.scope, event.key) = (Some("s".into()), Some("k".into()));
    event.token = Some(u64::from(call.force.seen.0));
    event.even_if_live = call.force.even_if_live;
    if let Verb::Resolve { value: Value::Result(value), ttl, .. } = call.force.verb {
        event.value_hash = Some(u64::from(value));
        event.ttl_us = Some(u64::from(ttl) * 1_000);
    }
    event
}
