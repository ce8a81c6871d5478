// SPDX-License-Identifier: MIT OR Apache-2.0
//! A second opinion: S18 looks for an order of a story's calls in which the model's sequential
//! record would have given the same answers.
//!
//! The record is the model's ([`model::Slot`]), which the model's exhaustive walk and the property
//! tests of the stores use too. Only time is different: here it is known only from outside, within
//! bounds. Therefore, after each step, the record is moved back to time 0 of an artificial clock,
//! on which its lease ends at `OVER` and its ttl at `GONE`. The bounds of the true instants are
//! kept beside the record. A step may happen at any of the three `TIMES` that its bounds allow.

use std::collections::HashSet;

use model::{Answer, Fenced, Op as Step, Owner, Print, Record, Slot, Tick, Value};

use super::result::lease_shown_too_early;
use super::wrong;
use crate::event::{Fun, Said};
use crate::excuse::Excuse;
use crate::judge::Violation;
use crate::story::{Op, Run, StoreClock, Story};
use crate::when::MS;

mod bounds;
mod force;

use bounds::put_back;

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// An order was found, or there is none.
    Ended,
    /// The story is too long, or has too many uncertain calls.
    GivenUp,
}

/// The three times: while the lease runs, after it, and after the ttl.
const TIMES: [Tick; 3] = [0, OVER, GONE];
const OVER: Tick = 10;
const GONE: Tick = 20;

/// The leases and ttls that end during a run are shorter than this, in nanoseconds.
const LONG: u64 = 2_000 * MS;

/// The number of states after which a search gives up.
const MOST: usize = 60_000;

/// The largest number of answered calls that may overlap the first call that is not placed yet, and
/// the largest number of calls without an answer.
const WINDOW: usize = 64;
const AMBIGUOUS: usize = 128;

/// S18: there is an order of the calls in which the sequential record gives the answers that were
/// given. The order agrees with the times at which each call was sent and answered, and contains
/// each call without an answer once or not at all.
pub fn s18(run: &Run, story: &Story, found: &mut Vec<Violation>) -> Search {
    let Some(puzzle) = Puzzle::of(run, story) else { return Search::GivenUp };
    match puzzle.solve() {
        Found::Order => Search::Ended,
        Found::TooMuch => Search::GivenUp,
        Found::None { furthest } => {
            // Show the calls that no order gets past, and the calls just before them.
            let around = puzzle.sure.iter().take(furthest + 2).skip(furthest.saturating_sub(5));
            let lines: Vec<_> = around.flat_map(|call| call.op.lines).collect();
            let at = puzzle.sure.first().map_or(0, |call| call.op.invoke);
            found.push(wrong("S18", at, "no order of these calls explains their answers", lines));
            Search::Ended
        }
    }
}

enum Found {
    Order,
    None { furthest: usize },
    TooMuch,
}

struct Placed<'s> {
    op: &'s Op,
    /// Whether this is the first sending of a call that the store repeated because its answer was
    /// lost.
    silent: bool,
    owner: Owner,
    value: Option<Value>,
    print: Option<Print>,
}

struct Puzzle<'s> {
    clock: &'s StoreClock,
    /// Whether the clock was set back and tokens fell, so that a free key may get a smaller token.
    rewound: bool,
    /// The answered calls, in the order in which they were sent.
    sure: Vec<Placed<'s>>,
    /// Calls that may be placed or left out: those without an answer, and first sendings of a
    /// repeated call.
    maybe: Vec<Placed<'s>>,
    /// For each owner, the time from which an extension without an answer may have changed the end
    /// of the lease, and the lease that it requested.
    stretched: Vec<(u64, u64)>,
}

/// The record, and the bounds of its times.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    slot: Slot,
    /// The recorded token, if its grant was answered, and the largest token of an answered grant.
    token: Option<u64>,
    top: u64,
    /// The earliest present time.
    now: u64,
    /// The bounds of the end of the lease, or of a result's ttl, by the store's clock.
    ends: (u64, u64),
    /// The time at which the call that set this end was sent.
    since: u64,
    /// The time at which the acquire that was granted the recorded lease was sent, and the ttl that
    /// it requested.
    granted: (u64, u64),
    /// The earliest end of the ttl that an unfinished record was acquired with.
    kept: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    first: usize,
    /// The calls from `first` on that are placed, as bits.
    mask: u64,
    maybe: u128,
    state: State,
}

impl<'s> Puzzle<'s> {
    fn of(run: &Run, story: &'s Story) -> Option<Self> {
        let (mut owners, mut values, mut prints) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sure, mut maybe) = (Vec::new(), Vec::new());
        for op in &story.ops {
            let says_nothing =
                op.failed || op.fun == Fun::Wait || op.is_info() && op.fun == Fun::Look;
            if says_nothing || lease_shown_too_early(run, story, op) {
                continue;
            }
            // If an operator supplied the result, the result's hash stands in for the owner.
            let by = op.value.filter(|_| op.fun == Fun::ForceResolve);
            let name = op.owner.or(by.map(|hash| u128::from(hash) | 1 << 127));
            let owner =
                Owner(name.map_or(Some(0), |owner| number(&mut owners, owner).checked_add(1))?);
            let value = match (op.tombstone, op.value) {
                (true, _) => Some(Value::Tombstone),
                (false, Some(hash)) => Some(Value::Result(number(&mut values, hash))),
                (false, None) => None,
            };
            let mut print = |fp: Option<u64>| fp.map(|hash| Print(number(&mut prints, hash)));
            let (asked, stored) = (print(op.fp), print(op.stored_fp));
            let placed = |silent| {
                let asks = op.fun == Fun::Acquire && (silent || !brought(op));
                Placed { op, silent, owner, value, print: if asks { asked } else { stored } }
            };
            if op.is_info() {
                let is_beat = op.fun == Fun::Extend;
                story.excuse(Excuse::LostBeat, op, is_beat);
                story.excuse(Excuse::Unanswered, op, !is_beat);
                maybe.push(placed(true));
                // Both copies of the call may have been granted, with another owner's lease in
                // between.
                if op.twice && op.fun == Fun::Acquire {
                    story.excuse(Excuse::Repeated, op, true);
                    maybe.push(placed(true));
                }
                continue;
            }
            // A second copy of an answered call can have a further effect only in these cases.
            let matters = match op.fun {
                Fun::Acquire => story.may_outlast_its_lease(op) || story.is_forced_beside(op),
                Fun::Complete | Fun::Release => !op.said(Said::Done),
                Fun::Extend => op.said(Said::Lost),
                fun => fun.is_force() && !op.said(Said::Done),
            };
            if story.excuse(Excuse::Repeated, op, op.twice && matters) {
                maybe.push(placed(true));
            }
            sure.push(placed(false));
        }
        let mut stretched = vec![(u64::MAX, 0); owners.len() + 1];
        maybe.retain(|placed| {
            let extend = placed.op.fun == Fun::Extend;
            // An extension without an answer needs no place in the order: it can only have changed
            // the end of the lease, at any time after it was sent.
            if extend && let Some(first) = stretched.get_mut(usize::from(placed.owner.0)) {
                *first = (placed.op.invoke, placed.op.lease).min(*first);
            }
            !extend
        });
        let (clock, rewound) = (&story.clock, story.rewound);
        (maybe.len() <= AMBIGUOUS).then_some(Self { clock, rewound, sure, maybe, stretched })
    }

    fn solve(&self) -> Found {
        let mut open = vec![Node { first: 0, mask: 0, maybe: 0, state: State::default() }];
        let mut seen = HashSet::new();
        let (mut whole, mut furthest) = (true, 0);
        while let Some(node) = open.pop() {
            if node.first == self.sure.len() {
                return Found::Order;
            }
            furthest = node.first.max(furthest);
            if !seen.insert(node) {
                continue;
            }
            if seen.len() > MOST {
                return Found::TooMuch;
            }
            whole &= self.next(&node, &mut open);
        }
        if whole { Found::None { furthest } } else { Found::TooMuch }
    }

    /// Pushes the possible next nodes; returns false if the window was too narrow for all of them.
    fn next(&self, node: &Node, open: &mut Vec<Node>) -> bool {
        // The next call in the order must have begun before the first answer that is still open.
        let window = self.sure.iter().enumerate().skip(node.first).take(WINDOW);
        let left = window.filter(|(at, _)| node.mask & (1 << (at - node.first)) == 0);
        let horizon = left.clone().map(|(_, placed)| placed.op.end()).min().unwrap_or(u64::MAX);
        let beyond =
            self.sure.get(node.first + WINDOW).is_some_and(|placed| placed.op.invoke <= horizon);
        for (at, placed) in self.maybe.iter().enumerate() {
            let open_still = node.maybe & (1 << at) == 0 && node.state.now <= placed.op.end();
            if open_still && placed.op.invoke <= horizon {
                for state in self.steps(&node.state, placed) {
                    // Skip the call if it had no effect: it changed neither the record nor the end
                    // of a lease.
                    if state.slot != node.state.slot || state.ends != node.state.ends {
                        open.push(Node { maybe: node.maybe | (1 << at), state, ..*node });
                    }
                }
            }
        }
        let mut candidates: Vec<_> =
            left.filter(|(_, placed)| placed.op.invoke <= horizon).collect();
        // The search takes the last pushed call first, so push the call with the earliest answer
        // last.
        candidates.sort_by_key(|(_, placed)| std::cmp::Reverse(placed.op.end()));
        for (at, placed) in candidates {
            for state in self.steps(&node.state, placed) {
                let (mut first, mut mask) = (node.first, node.mask | (1 << (at - node.first)));
                while mask & 1 == 1 {
                    mask >>= 1;
                    first += 1;
                }
                open.push(Node { first, mask, maybe: node.maybe, state });
            }
        }
        !beyond
    }

    /// Returns the possible records after this call, if its answer agrees with the record.
    fn steps(&self, state: &State, placed: &Placed<'_>) -> Vec<State> {
        let op = placed.op;
        if op.fun.is_force() {
            return self.forced(state, placed);
        }
        // The time that a call used may be earlier than the times of the calls before it in the
        // order: a database reads its clock while a statement runs, and shows the changes after the
        // commit.
        let (from, to) = (op.invoke, op.end());
        let (lease, ttl) = (OVER, GONE);
        let step = match op.fun {
            Fun::Acquire => {
                Step::Acquire { owner: placed.owner, lease, ttl, print: self.asked(placed) }
            }
            Fun::Look => Step::Look,
            Fun::Extend => Step::Extend { owner: placed.owner, lease },
            Fun::Complete => Step::Complete {
                owner: placed.owner,
                value: placed.value.unwrap_or(Value::Tombstone),
                ttl,
            },
            _ => Step::Release { owner: placed.owner },
        };
        let mut after = Vec::new();
        // An answer without remaining time means that a lock prevents the takeover, so nothing
        // changes.
        let held_back = !placed.silent && op.said(Said::Busy) && op.remaining == Some(0);
        if held_back && matches!(state.slot.record, Record::InProgress(_)) {
            after.push(State { now: from.max(state.now), ..*state });
        }
        for now in TIMES.into_iter().filter(|now| self.may_be(state, *now, from, to)) {
            // The record's times are relative to its own time 0. Below, `put_back` moves a new
            // lease back to time 0.
            for (slot, answer) in state.slot.allowed(now, step) {
                let free = now == GONE || state.slot.record == Record::Absent;
                let top = if self.rewound && free { 0 } else { state.top };
                let Some((token, top)) = tokens(&State { top, ..*state }, placed, answer) else {
                    continue;
                };
                let now = from.max(state.now);
                let mut next = State { slot: put_back(slot), token, top, now, ..*state };
                let after_this = |span: u64| {
                    let (earliest, latest) = op.clock;
                    (earliest.saturating_add(span), latest.saturating_add(span))
                };
                let ends = match (op.fun, answer) {
                    (Fun::Acquire, Answer::Granted { .. }) => {
                        next.granted = (from, op.ttl);
                        next.kept = op.clock.0.saturating_add(op.ttl);
                        Some(after_this(op.lease))
                    }
                    (Fun::Extend, Answer::Fenced(Fenced::Done)) => {
                        let (began, ttl) = state.granted;
                        // Some stores keep a record for the rest of its ttl after its lease.
                        if self.clock.is_set_back(began, to) {
                            next.kept = op.clock.0.saturating_add(ttl).min(state.kept);
                        }
                        Some(after_this(op.lease))
                    }
                    (Fun::Complete, Answer::Fenced(Fenced::Done)) => Some(after_this(op.ttl)),
                    _ => None,
                };
                if let Some(ends) = ends {
                    (next.ends, next.since) = (ends, op.invoke);
                }
                after.push(next);
            }
        }
        after
    }

    /// Returns the fingerprint of an acquire, whatever its answer was.
    fn asked(&self, placed: &Placed<'_>) -> Option<Print> {
        placed.print.filter(|_| placed.silent || !brought(placed.op))
    }
}

/// Returns whether the answer contains the stored result.
fn brought(op: &Op) -> bool {
    op.said(Said::Complete) || op.said(Said::Tombstone)
}

fn number<T: PartialEq>(seen: &mut Vec<T>, item: T) -> u16 {
    let at = seen.iter().position(|other| *other == item).unwrap_or_else(|| {
        seen.push(item);
        seen.len() - 1
    });
    u16::try_from(at).unwrap_or(u16::MAX)
}

/// Returns the tokens that are known afterwards (the recorded one and the largest), if the call's
/// answer agrees with the model's.
fn tokens(state: &State, placed: &Placed<'_>, answer: Answer) -> Option<(Option<u64>, u64)> {
    let op = placed.op;
    let unchanged = (state.token, state.top);
    let is = |said: Said| op.said(said);
    // Whether this grant is the lease on record. The same owner may also have got a new lease after
    // its first one was purged.
    let is_own = |granted| matches!(state.slot.record, Record::InProgress(held) if held.owner == placed.owner && held.token == granted);
    if placed.silent {
        // No caller got the answer, so the token of a grant is unknown.
        let new = matches!(answer, Answer::Granted { token, .. } if !is_own(token));
        return Some(if new { (None, state.top) } else { unchanged });
    }
    match answer {
        Answer::Granted { took_over, token: granted } => {
            let token = op.token?;
            let own = is_own(granted);
            let right = if own {
                state.token.is_none_or(|known| known == token)
            } else {
                token > state.top
            };
            (is(if took_over { Said::TookOver } else { Said::Granted }) && right)
                .then(|| (Some(token), state.top.max(token)))
        }
        Answer::Busy { .. } => {
            let token = op.token?;
            let right = state.token.map_or(token > state.top, |known| known == token);
            (is(Said::Busy) && right).then(|| (Some(token), state.top.max(token)))
        }
        Answer::Complete { value, print } => {
            let right = placed.value == Some(value) && placed.print == print;
            (brought(op) && right).then_some(unchanged)
        }
        Answer::Absent => is(Said::Absent).then_some(unchanged),
        Answer::Fenced(fenced) => {
            let said = match fenced {
                Fenced::Done => Said::Done,
                Fenced::AlreadyDone => Said::AlreadyDone,
                Fenced::Lost => Said::Lost,
            };
            is(said).then_some(unchanged)
        }
        Answer::Purged(_) => None,
    }
}
