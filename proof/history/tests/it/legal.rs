// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random histories that a correct store may produce: no rule may flag them.
//!
//! A correct record ([`model::Slot`]) answers owners that acquire, send heartbeats, complete,
//! release, die and acquire again, over a network that delays, loses and, while it is disturbed,
//! repeats messages. The test writes down what the owners see, in the form of the kill tests. A
//! rule that flags such a history is wrong itself. With a defect in the record, the same histories
//! must be flagged; otherwise they prove nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use history::{Event, Fun, Judgement, Line, Phase, Run, Said};
use model::{Answer, Defect, Fenced, Op, Owner, Print, Slot, Tick, Value};

use crate::random::Random;
use crate::script::manifest;

mod operator;

use operator::Turn;

const STORIES: u64 = 20_000;
const LENGTH: Tick = 4_000;
/// A ttl that does not end in the story.
const LONG: Tick = 40_000;

#[test]
fn no_rule_flags_what_a_right_store_may_have_answered() {
    let mut unsearched = 0;
    for seed in 0..STORIES {
        let (judgement, text) = play(seed, None);
        assert!(
            judgement.violations.is_empty(),
            "story {seed}: {:#?}\n{text}",
            judgement.violations
        );
        unsearched += judgement.unsearched;
    }
    assert!(unsearched < STORIES / 20, "{unsearched} of {STORIES} stories were not searched");
}

#[test]
fn the_same_histories_of_a_defect_are_flagged() {
    let defects = [
        (Defect::NoOwnerCheck, "S3"),
        (Defect::TakeoverForgotten, "S2"),
        (Defect::TakeoverUntold, "S2"),
        (Defect::TokenRestarts, "S9"),
        (Defect::CompleteOverwrites, "S3"),
        (Defect::PurgeEager, "S2"),
        (Defect::RepeatRefused, "S18"),
        (Defect::BeatAnyOwner, "S17"),
        (Defect::ReleaseAnyOwner, "S3"),
        (Defect::ReplaysExpired, "S18"),
    ];
    for (defect, rule) in defects {
        let flagged = (0..2_000).any(|seed| {
            let (judgement, _) = play(seed, Some(defect));
            judgement.violations.iter().any(|violation| violation.rule == rule)
        });
        assert!(flagged, "{defect:?} is not flagged by {rule} in 2,000 stories");
    }
}

fn play(seed: u64, flaw: Option<Defect>) -> (Judgement, String) {
    judge(World::new(seed, flaw))
}

fn judge(mut world: World) -> (Judgement, String) {
    world.play();
    let mut run = Run::new(manifest());
    world.events.sort_by_key(|event| event.mono_ns);
    let mut text = String::new();
    for (number, event) in (0..).zip(world.events) {
        text += &serde_json::to_string(&event).unwrap();
        text.push('\n');
        run.take(event, Line { file: 0, number }).unwrap();
    }
    run.close();
    (history::judge(&run), text)
}

/// What an owner intends to do when it holds the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aim {
    Complete,
    Tombstone,
    Release,
    Die,
}

const AIMS: [Aim; 5] = [Aim::Complete, Aim::Complete, Aim::Tombstone, Aim::Release, Aim::Die];

struct Client {
    lease: Tick,
    ttl: Tick,
    print: Option<Print>,
    aim: Aim,
    token: Option<u16>,
    /// How often the owner repeats its acquire, and how often it sends a heartbeat.
    again: u32,
    beats: u32,
}

enum Due {
    /// A client sends a call.
    Send(u16, Op),
    /// A call reaches the store; its answer may or may not reach the client.
    Arrive {
        client: u16,
        op: Op,
        number: u64,
        heard: bool,
    },
    /// A caller has given up on a call.
    GaveUp {
        client: u16,
        op: Op,
        number: u64,
        told: bool,
    },
    Hear {
        client: u16,
        op: Op,
        number: u64,
        answer: Answer,
    },
    Purge,
    Operator(Turn),
}

struct World {
    random: Random,
    flaw: Option<Defect>,
    slot: Slot,
    clients: Vec<Client>,
    disturbed: Vec<(Tick, Tick)>,
    due: BinaryHeap<Reverse<(Tick, usize)>>,
    /// What is due, by the number in `due`.
    what: Vec<Option<Due>>,
    ops: u64,
    events: Vec<Event>,
    /// Results of operators, with their tokens.
    resolved: Vec<(u16, u16)>,
    /// A defect: the token that the operator saw is not compared.
    is_unfenced: bool,
}

impl World {
    fn new(seed: u64, flaw: Option<Defect>) -> Self {
        Self {
            random: Random(seed),
            flaw,
            slot: Slot::default(),
            clients: Vec::new(),
            disturbed: Vec::new(),
            due: BinaryHeap::new(),
            what: Vec::new(),
            ops: 0,
            events: Vec::new(),
            resolved: Vec::new(),
            is_unfenced: false,
        }
    }

    fn at(&mut self, when: Tick, what: Due) {
        self.due.push(Reverse((when, self.what.len())));
        self.what.push(Some(what));
    }

    fn play(&mut self) {
        for number in 0..u64::from(self.random.within(0, 3)) {
            let from = self.random.within(0, LENGTH);
            let to = from + self.random.within(20, 900);
            self.disturbed.push((from, to));
            let mut fault =
                Event::new((0, 1), ns(from) + number, Fun::Fault, Phase::Invoke, ns(from));
            fault.note = Some("cut".into());
            self.events.push(Event { phase: Phase::Ok, mono_ns: ns(to), ..fault.clone() });
            self.events.push(fault);
            self.at(from, Due::Purge);
        }
        for _ in 0..self.random.within(2, 9) {
            let (client, print) =
                (u16::try_from(self.clients.len()).unwrap(), self.random.within(0, 3));
            let ttl = if self.random.in_100(60) { LONG } else { self.random.within(150, 900) };
            self.clients.push(Client {
                lease: self.random.within(40, 400),
                ttl,
                print: (print > 0).then_some(Print(print)),
                aim: AIMS[usize::from(self.random.within(0, 5))],
                token: None,
                again: u32::from(self.random.within(0, 4)),
                beats: u32::from(self.random.within(0, 4)),
            });
            let when = self.random.within(0, LENGTH);
            self.ask(when, client);
        }
        for _ in 0..self.random.within(0, 6) {
            let (when, purge) = (self.random.within(0, LENGTH + 500), self.random.in_100(50));
            self.at(when, if purge { Due::Purge } else { Due::Send(u16::MAX, Op::Look) });
        }
        for _ in 0..self.random.within(0, 4) {
            let when = self.random.within(0, LENGTH);
            self.at(when, Due::Operator(Turn::Look));
        }
        while let Some(Reverse((now, number))) = self.due.pop() {
            match self.what[number].take() {
                Some(Due::Send(client, op)) => self.send(now, client, op),
                Some(Due::Arrive { client, op, number, heard }) => {
                    let (slot, answer) = self.slot.step_with(now, op, self.flaw);
                    self.slot = slot;
                    if heard {
                        let when = now + self.random.within(0, 9);
                        self.at(when, Due::Hear { client, op, number, answer });
                    }
                }
                Some(Due::GaveUp { client, op, number, told }) => {
                    if told {
                        let event = self.event(now, client, op, number, Phase::Info);
                        self.events.push(event);
                    }
                    self.after_silence(now, client, op, told);
                }
                Some(Due::Hear { client, op, number, answer }) => {
                    self.hear(now, client, op, number, answer)
                }
                Some(Due::Purge) => self.slot = self.slot.step_with(now, Op::Purge, self.flaw).0,
                Some(Due::Operator(turn)) => self.operate(now, turn),
                None => {}
            }
        }
    }

    fn ask(&mut self, when: Tick, client: u16) {
        let Client { lease, ttl, print, .. } = self.clients[usize::from(client)];
        self.at(
            when,
            Due::Send(client, Op::Acquire { owner: Owner(client + 1), lease, ttl, print }),
        );
    }

    fn send(&mut self, now: Tick, client: u16, op: Op) {
        self.ops += 1;
        let number = self.ops;
        let mut event = self.event(now, client, op, number, Phase::Invoke);
        match op {
            Op::Acquire { lease, ttl, print, .. } => {
                (event.lease_us, event.ttl_us) =
                    (Some(u64::from(lease) * 1_000), Some(u64::from(ttl) * 1_000));
                event.fp_hash = print.map(|print| u64::from(print.0));
            }
            Op::Extend { lease, .. } => event.lease_us = Some(u64::from(lease) * 1_000),
            Op::Complete { ttl, value, .. } => {
                event.ttl_us = Some(u64::from(ttl) * 1_000);
                match value {
                    Value::Result(of) => event.value_hash = Some(u64::from(of)),
                    Value::Tombstone => event.said = Some(Said::Tombstone),
                }
            }
            _ => {}
        }
        self.events.push(event);
        let (there, random) = (now + self.random.within(0, 9), self.random.within(0, 100));
        let patience = self.random.within(20, 700);
        let disturbed = self.disturbed.iter().any(|(from, to)| *from <= there && now <= *to);
        let arrive = |heard| Due::Arrive { client, op, number, heard };
        match random {
            // The client is killed or gives up: the call arrives in time, late, or never.
            0..6 => {
                self.at(now + patience, Due::GaveUp { client, op, number, told: random < 3 });
                if random % 3 > 0 {
                    let late = self.random.within(0, if random % 3 == 1 { 9 } else { 1_000 });
                    self.at(now + late, arrive(false));
                }
            }
            // The store's driver sends the call again as soon as it has a connection. The answer to
            // the first call is lost, whether or not that call has arrived.
            6..60 if disturbed => {
                if random < 40 {
                    let late = if random < 12 { self.random.within(0, patience) } else { 0 };
                    self.at(there + late, arrive(false));
                }
                if random % 4 == 0 {
                    self.at(now + patience, Due::GaveUp { client, op, number, told: true });
                }
                self.at(there + patience, arrive(random % 4 != 0));
            }
            _ => self.at(there, arrive(true)),
        }
    }

    fn after_silence(&mut self, now: Tick, client: u16, op: Op, told: bool) {
        let Some(own) = self.clients.get_mut(usize::from(client)) else { return };
        // The client was killed, or does not repeat its call.
        if !told || own.again == 0 {
            return;
        }
        own.again -= 1;
        let when = now + self.random.within(0, 100);
        let owner = Owner(client + 1);
        // A client that gives up an acquire releases the key, because the acquire may have been
        // granted.
        let given_up = matches!(op, Op::Acquire { .. }) && self.random.in_100(20);
        self.at(when, Due::Send(client, if given_up { Op::Release { owner } } else { op }));
    }

    fn hear(&mut self, now: Tick, client: u16, op: Op, number: u64, answer: Answer) {
        let mut event = self.event(now, client, op, number, Phase::Ok);
        let soon = now + self.random.within(0, 120);
        match answer {
            Answer::Granted { token, took_over } => {
                event.said = Some(if took_over { Said::TookOver } else { Said::Granted });
                event.token = Some(u64::from(token.0));
                self.clients[usize::from(client)].token = Some(token.0);
                self.work(soon, client);
            }
            Answer::Busy { remaining, token } => {
                (event.said, event.token) = (Some(Said::Busy), Some(u64::from(token.0)));
                event.remaining_us = Some(u64::from(remaining) * 1_000);
                let asks =
                    matches!(op, Op::Acquire { .. }) && self.clients[usize::from(client)].again > 0;
                if asks {
                    self.clients[usize::from(client)].again -= 1;
                    let when = if self.random.in_100(50) { now + remaining } else { soon };
                    self.ask(when, client);
                }
            }
            Answer::Complete { value, print } => {
                event.fp_hash = print.map(|print| u64::from(print.0));
                event.said = Some(Said::Tombstone);
                if let Value::Result(of) = value {
                    event.said = Some(Said::Complete);
                    let given = self.resolved.iter().find(|(value, _)| *value == of);
                    let own = || self.clients[usize::from(of)].token.unwrap();
                    let token = given.map_or_else(own, |(_, token)| *token);
                    event.bears = Some(("s".into(), "k".into(), u64::from(token)));
                    event.value_hash = Some(u64::from(of));
                }
            }
            Answer::Absent => event.said = Some(Said::Absent),
            Answer::Fenced(fenced) => {
                event.said = Some(match fenced {
                    Fenced::Done => Said::Done,
                    Fenced::AlreadyDone => Said::AlreadyDone,
                    Fenced::Lost => Said::Lost,
                });
                match (op, fenced) {
                    (Op::Extend { .. }, Fenced::Done) => self.work(soon, client),
                    (Op::Complete { .. }, Fenced::Lost) => {
                        self.at(soon, Due::Send(client, Op::Look))
                    }
                    _ => {}
                }
            }
            Answer::Purged(_) => unreachable!("no script purges"),
        }
        self.events.push(event);
    }

    /// A holder's next step.
    fn work(&mut self, when: Tick, client: u16) {
        let own = &mut self.clients[usize::from(client)];
        let (owner, lease, ttl) = (Owner(client + 1), own.lease, own.ttl);
        let op = match own.aim {
            _ if own.beats > 0 => {
                own.beats -= 1;
                Op::Extend { owner, lease }
            }
            Aim::Complete => Op::Complete { owner, value: Value::Result(client), ttl },
            Aim::Tombstone => Op::Complete { owner, value: Value::Tombstone, ttl },
            Aim::Release => Op::Release { owner },
            Aim::Die => return,
        };
        // Sometimes the holder delays its step until its lease may have ended.
        let dawdles = if self.random.in_100(25) { lease } else { 0 };
        self.at(when + dawdles, Due::Send(client, op));
    }

    fn event(&self, now: Tick, client: u16, op: Op, number: u64, phase: Phase) -> Event {
        let (fun, owner) = match op {
            Op::Acquire { owner, .. } => (Fun::Acquire, Some(owner)),
            Op::Extend { owner, .. } => (Fun::Extend, Some(owner)),
            Op::Complete { owner, .. } => (Fun::Complete, Some(owner)),
            Op::Release { owner } => (Fun::Release, Some(owner)),
            Op::Look | Op::Purge => (Fun::Look, None),
        };
        let mut event = Event::new((u32::from(client) + 1, 1), number, fun, phase, ns(now));
        (event.scope, event.key) = (Some("s".into()), Some("k".into()));
        event.owner = owner.map(|owner| format!("{:032x}", owner.0));
        event
    }
}

fn ns(tick: Tick) -> u64 {
    u64::from(tick) * 1_000_000
}
