// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Run`]: the events of a run, sorted into one [`Story`] per identity.

use std::collections::HashMap;

use crate::event::{CLOCK_MOVED, Event, Fun, Manifest, Phase, Said};
use crate::excuse::{Excuse, Excused};
use crate::when::slop;

mod clock;
mod close;
mod fault;
mod lost;
mod rewound;
mod take;
mod tenure;

pub use clock::StoreClock;
pub use fault::{Fault, SlotMove};
pub use tenure::{Completed, Tenure};

/// A time that never comes, and to which a duration can be added.
const NEVER: u64 = u64::MAX / 4;

/// The place of an event in the files, to show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(missing_docs, reason = "they say it")]
pub struct Line {
    pub file: u32,
    pub number: u32,
}

/// One life of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(missing_docs, reason = "they say it")]
pub struct Actor {
    pub proc: u32,
    pub incarnation: u32,
}

/// A store call; times in nanoseconds.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "named as the fields of an event")]
pub struct Op {
    /// The number of the call in its story.
    pub at: usize,
    pub actor: Actor,
    pub call: Option<u64>,
    pub fun: Fun,
    pub owner: Option<u128>,
    pub invoke: u64,
    /// When the call was answered; `None` if it is *info*.
    pub answer: Option<u64>,
    /// When the caller had given up or died, if that is known.
    pub gave_up: Option<u64>,
    /// Whether the call failed, so that nothing happened.
    pub failed: bool,
    pub said: Option<Said>,
    pub token: Option<u64>,
    pub lease: u64,
    pub ttl: u64,
    pub fp: Option<u64>,
    /// The hash of the value that a completion writes or an answer contains.
    pub value: Option<u64>,
    pub tombstone: bool,
    pub bears: Option<(String, String, u64)>,
    pub stored_fp: Option<u64>,
    pub remaining: Option<u64>,
    /// For an operator's call: the token that the operator had seen.
    pub asked: Option<u64>,
    /// When the operator had seen the token.
    pub since: Option<u64>,
    pub even_if_live: bool,
    /// Whether the call was under way while connections or the store were disturbed. A store
    /// repeats a call if its connection breaks, so the call may have taken effect once before it
    /// was answered, at any time after it was sent.
    pub twice: bool,
    /// The earliest and the latest time that the store's clock may have shown when the call took
    /// effect.
    pub clock: (u64, u64),
    /// Whether the engine sent the call without a future, because the store answers at once.
    pub in_place: bool,
    /// Whether the call was answered at its first poll.
    pub at_once: bool,
    pub lines: [Option<Line>; 2],
}

impl Op {
    /// Returns whether the call may have taken effect although its caller got no answer.
    #[must_use]
    pub fn is_info(&self) -> bool {
        self.answer.is_none() && !self.failed
    }

    /// Returns whether the call has this answer.
    #[must_use]
    pub fn said(&self, said: Said) -> bool {
        self.said == Some(said)
    }

    /// Returns whether the call is an acquire that was granted.
    #[must_use]
    pub fn is_grant(&self) -> bool {
        self.fun == Fun::Acquire && matches!(self.said, Some(Said::Granted | Said::TookOver))
    }

    /// Returns when the call was answered; for *info*, a time that never comes.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.answer.unwrap_or(NEVER)
    }
}

impl Story {
    /// Returns whether a lease that this call got when it was first sent may have been over, by the
    /// store's clock, when the call was sent again. If not, the repeated call was answered with the
    /// same lease (ACQ-9).
    #[must_use]
    pub fn may_outlast_its_lease(&self, op: &Op) -> bool {
        self.clock.left_of(op, op.lease, op.end()) <= slop(op.lease)
    }

    /// If the excuse applies to the operation, notes that. Returns `applies`.
    pub(crate) fn excuse(&self, excuse: Excuse, op: &Op, applies: bool) -> bool {
        if applies {
            self.excused.add(excuse, op.at);
        }
        applies
    }
}

/// A call of the engine.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "named as the fields of an event")]
pub struct Call {
    pub actor: Actor,
    pub op: u64,
    pub invoke: u64,
    pub answer: Option<u64>,
    pub answers: u32,
    pub said: Option<Said>,
    pub fp: Option<u64>,
    pub wait: u64,
    pub recorded: Option<String>,
    pub fenced: bool,
    pub propagate: bool,
    pub value: Option<u64>,
    pub bears: Option<(String, String, u64)>,
    /// Whether the hook for refused completions got the value.
    pub hooked: bool,
    pub note: Option<String>,
    pub lines: [Option<Line>; 2],
}

/// An action's run.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "named as the fields of an event")]
pub struct Act {
    pub actor: Actor,
    pub call: u64,
    pub token: u64,
    pub start: u64,
    pub end: Option<(u64, Said)>,
    pub note: Option<String>,
    pub lines: [Option<Line>; 2],
}

/// Something that happened at one instant.
#[expect(missing_docs, reason = "named as the fields of an event")]
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub actor: Actor,
    pub at: u64,
    pub said: Said,
    pub token: u64,
    pub bytes: u64,
    pub remaining: Option<u64>,
    pub line: Line,
}

/// Everything that happened to one identity.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "they say it")]
pub struct Story {
    pub scope: String,
    pub key: String,
    pub ops: Vec<Op>,
    /// Every owner that tried to get the lease, those with known tokens first and in their order.
    pub tenures: Vec<Tenure>,
    pub calls: Vec<Call>,
    pub acts: Vec<Act>,
    pub told: Vec<Moment>,
    pub effects: Vec<Moment>,
    pub dumps: Vec<Moment>,
    /// When the identity's slot moved between nodes of a cluster.
    pub moves: Vec<SlotMove>,
    /// What was not flagged, and why.
    pub excused: Excused,
    pub clock: StoreClock,
    /// Whether a token is smaller than an older one, because the store's clock was set back after
    /// the record with the older token was gone. Stores whose tokens follow their clocks document
    /// this (ACQ-10).
    pub rewound: bool,
}

/// A whole run.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "they say it")]
pub struct Run {
    pub manifest: Manifest,
    pub stories: Vec<Story>,
    pub faults: Vec<Fault>,
    pub events: u64,
    /// When the last fault was over.
    pub settled_from: Option<u64>,
    /// The last instant of the history.
    pub last: u64,
    /// The number of threads of each process that runs callers, by the process's number.
    pub threads: HashMap<u32, u32>,
    /// How often a process saw its wall clock move.
    pub leaps_seen: u64,
    lags: HashMap<Actor, Vec<(u64, u64)>>,
    ended: HashMap<Actor, u64>,
    /// The intervals in which a process was cut off from the server, by the process's number.
    aways: HashMap<u32, Vec<(u64, u64)>>,
    /// When the lives of each process began.
    begun: HashMap<u32, Vec<u64>>,
    names: HashMap<(String, String), usize>,
    open: HashMap<(Actor, u64), (usize, usize)>,
    open_calls: HashMap<(Actor, u64), (usize, usize)>,
    open_faults: HashMap<u64, usize>,
}

impl Run {
    /// Creates a run without events.
    #[must_use]
    pub fn new(manifest: Manifest) -> Self {
        Self {
            manifest,
            stories: Vec::new(),
            faults: Vec::new(),
            events: 0,
            settled_from: None,
            last: 0,
            threads: HashMap::new(),
            leaps_seen: 0,
            lags: HashMap::new(),
            ended: HashMap::new(),
            aways: HashMap::new(),
            begun: HashMap::new(),
            names: HashMap::new(),
            open: HashMap::new(),
            open_calls: HashMap::new(),
            open_faults: HashMap::new(),
        }
    }

    /// Adds an event.
    ///
    /// # Errors
    /// If the event lacks a field that its kind needs, or answers a call that did not begin.
    pub fn take(&mut self, event: Event, line: Line) -> Result<(), String> {
        self.events += 1;
        self.last = self.last.max(event.mono_ns);
        let actor = Actor { proc: event.proc, incarnation: event.incarnation };
        match event.fun {
            Fun::Acquire | Fun::Look | Fun::Wait | Fun::Extend | Fun::Complete | Fun::Release => {
                self.take_op(actor, event, line)
            }
            fun if fun.is_force() => self.take_op(actor, event, line),
            Fun::Respond => self.take_call(actor, event, line),
            Fun::ActStart | Fun::ActEnd => self.take_act(actor, event, line),
            Fun::Told | Fun::Effect | Fun::Dump => {
                let moment = Moment {
                    actor,
                    at: event.mono_ns,
                    said: event.said.ok_or("the event has no `said`")?,
                    token: event.token.unwrap_or(0),
                    bytes: event.value_hash.unwrap_or(0),
                    remaining: event.remaining_us.map(|us| us * 1_000),
                    line,
                };
                let fun = event.fun;
                let story = self.story(&event)?;
                match fun {
                    Fun::Told => story.told.push(moment),
                    Fun::Effect => story.effects.push(moment),
                    _ => story.dumps.push(moment),
                }
                Ok(())
            }
            Fun::Fenced => {
                let call = event.call.ok_or("the event has no `call`")?;
                let at = self.open_calls.get(&(actor, call)).copied();
                if let Some((story, call)) = at {
                    self.stories[story].calls[call].hooked = true;
                }
                Ok(())
            }
            Fun::Lag => {
                let since = event.since_ns.ok_or("the event has no `since_ns`")?;
                self.lags.entry(actor).or_default().push((since, event.mono_ns));
                Ok(())
            }
            Fun::Away => {
                let since = event.since_ns.ok_or("the event has no `since_ns`")?;
                let victim = event.victim.ok_or("the event has no `victim`")?;
                self.aways.entry(victim).or_default().push((since, event.mono_ns));
                Ok(())
            }
            Fun::Moved => {
                let from = event.since_ns.ok_or("the event has no `since_ns`")?;
                let one = SlotMove { from, to: event.mono_ns, lossy: event.lossy };
                self.story(&event)?.moves.push(one);
                Ok(())
            }
            Fun::Fault => self.take_fault(event),
            Fun::Proc => {
                match event.phase {
                    Phase::Ok => {
                        self.ended.insert(actor, event.mono_ns);
                    }
                    Phase::Invoke => {
                        self.begun.entry(actor.proc).or_default().push(event.mono_ns);
                        let threads = event.note.and_then(|note| note.parse().ok());
                        self.threads.extend(threads.map(|threads| (event.proc, threads)));
                    }
                    _ => self.leaps_seen += u64::from(event.note.as_deref() == Some(CLOCK_MOVED)),
                }
                Ok(())
            }
            Fun::Settle => {
                self.settled_from = Some(event.mono_ns);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns how long the process did not run between the two instants, as far as the history
    /// shows.
    #[must_use]
    pub fn lag(&self, actor: Actor, from: u64, to: u64) -> u64 {
        let lags = self.lags.get(&actor).map(Vec::as_slice).unwrap_or_default();
        lags.iter().map(|(since, until)| (*until).min(to).saturating_sub((*since).max(from))).sum()
    }

    /// Returns when the process ended by itself, if it did.
    #[must_use]
    pub fn ended(&self, actor: Actor) -> Option<u64> {
        self.ended.get(&actor).copied()
    }

    /// Returns whether a fault was active at some instant of the interval.
    #[must_use]
    pub fn faulty(&self, from: u64, to: u64, is: impl Fn(&Fault) -> bool) -> bool {
        self.faults
            .iter()
            .any(|fault| is(fault) && fault.from <= to && fault.to.is_none_or(|end| end >= from))
    }

    /// Returns the time that a shared machine may add to a bound.
    #[must_use]
    pub fn slack(&self) -> u64 {
        self.manifest.slack_ms * crate::when::MS
    }

    /// Returns the limit on the pause between two reads by a waiter that is not notified.
    #[must_use]
    pub fn poll(&self) -> u64 {
        self.manifest.poll_ms * crate::when::MS
    }

    /// Returns the time after the completion within which half of the notified waiters must have
    /// the result, if the store answers at once.
    #[must_use]
    pub fn wake(&self) -> u64 {
        self.manifest.wake_ms * crate::when::MS
    }

    /// Returns the median time that the store took to answer a call. A call that waits for a change
    /// does not count, nor does one that failed.
    #[must_use]
    pub fn usual_answer(&self) -> u64 {
        let ops = self.stories.iter().flat_map(|story| &story.ops);
        let answered = ops.filter(|op| op.fun != Fun::Wait && !op.failed);
        let mut took: Vec<u64> =
            answered.filter_map(|op| Some(op.answer?.saturating_sub(op.invoke))).collect();
        took.sort_unstable();
        took.get(took.len() / 2).copied().unwrap_or(0)
    }

    /// Returns the `operation-timeout` of the run's engines.
    #[must_use]
    pub fn operation_timeout(&self) -> u64 {
        self.manifest.operation_timeout_ms * crate::when::MS
    }
}
