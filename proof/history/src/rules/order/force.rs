// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps of operators, for the search of S18.

use std::iter::once;

use model::{Answer, Done, Force, Forced, Op as Step, Record, Slot, Token, Value, Verb};

use super::{GONE, Placed, Puzzle, State, TIMES, put_back};
use crate::event::{Fun, Said};

/// A token that no record has.
const OTHER: Token = Token(u16::MAX);

impl Puzzle<'_> {
    /// Returns the possible records after an intervention, if its answer agrees with the record.
    pub(super) fn forced(&self, state: &State, placed: &Placed<'_>) -> Vec<State> {
        let op = placed.op;
        let Some(asked) = op.asked else { return Vec::new() };
        let (from, to) = (op.invoke, op.end());
        let verb = match op.fun {
            Fun::ForceRelease => Verb::Release,
            Fun::ForceResolve => {
                let value = placed.value.unwrap_or(Value::Tombstone);
                Verb::Resolve { by: placed.owner, value, ttl: GONE }
            }
            Fun::ForceForget => Verb::Forget,
            _ => Verb::Erase,
        };
        let mut after = Vec::new();
        for now in TIMES.into_iter().filter(|now| self.may_be(state, *now, from, to)) {
            // An expired record may have been purged, or may still exist.
            let (purged, due) = state.slot.step(now, Step::Purge);
            let purged = (due == Answer::Purged(true)).then_some(purged);
            for slot in once(state.slot).chain(purged) {
                for is_it in [true, false] {
                    let seen = if is_it { slot.last } else { OTHER };
                    let force = Force { seen, verb, even_if_live: op.even_if_live };
                    let (left, answer) = slot.force(now, force);
                    let Some((token, top)) = tokens(state, placed, asked, is_it, answer) else {
                        continue;
                    };
                    let mut next =
                        State { slot: left, token, top, now: from.max(state.now), ..*state };
                    if left != slot && op.fun == Fun::ForceResolve {
                        let (earliest, latest) = op.clock;
                        next.ends =
                            (earliest.saturating_add(op.ttl), latest.saturating_add(op.ttl));
                        next.since = from;
                    }
                    next.slot = put_back(left);
                    // In the memory store, the resolved record has no fingerprint, because the
                    // store does not keep the fingerprint of a lease.
                    if left != slot
                        && op.fun == Fun::ForceResolve
                        && let Record::Complete(done) = next.slot.record
                    {
                        let record = Record::Complete(Done { print: None, ..done });
                        after.push(State { slot: Slot { record, ..next.slot }, ..next });
                    }
                    after.push(next);
                }
            }
        }
        after
    }
}

/// Returns the tokens that are known afterwards (the recorded one and the largest), if the call's
/// answer agrees with the model's. `is_it` says whether the record has the token that the operator
/// had seen.
fn tokens(
    state: &State,
    placed: &Placed<'_>,
    asked: u64,
    is_it: bool,
    answer: Forced,
) -> Option<(Option<u64>, u64)> {
    let op = placed.op;
    let unchanged = (state.token, state.top);
    if answer == Forced::Absent {
        return (placed.silent || op.said(Said::Absent)).then_some(unchanged);
    }
    let possible = match state.token {
        Some(known) => (known == asked) == is_it,
        // The recorded token is unknown, because no caller got the answer to its grant.
        None => !is_it || asked > state.top,
    };
    if !possible {
        return None;
    }
    let seen = |token: u64| (Some(token), state.top.max(token));
    if placed.silent {
        return Some(if is_it { seen(asked) } else { unchanged });
    }
    let said = match answer {
        Forced::Applied => Said::Done,
        Forced::Live { .. } => Said::Busy,
        Forced::Unfinished => Said::Unfinished,
        Forced::Finished => Said::Finished,
        Forced::AnotherToken(_) => Said::AnotherToken,
        Forced::Absent => Said::Absent,
    };
    if !op.said(said) {
        return None;
    }
    if is_it {
        return Some(seen(asked));
    }
    let token = op.token?;
    state.token.map_or(token > state.top, |known| known == token).then(|| seen(token))
}
