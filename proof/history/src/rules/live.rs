// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must happen in time: L1 to L5. Every bound has the slack that the manifest states, and the
//! time in which the process is known not to have run does not count: on a shared machine a bound
//! without these would judge the machine.

use super::{ms, wrong};
use crate::event::{Fun, Said};
use crate::judge::Violation;
use crate::story::{Call, Op, Run, Story, Tenure};
use crate::when::LONGEST_POLL_NS;

/// L1: a call that ran nothing ends by its wait and one store call.
pub fn l1(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for call in &story.calls {
        let ran_nothing = matches!(
            call.said,
            Some(
                Said::Replayed
                    | Said::InFlight
                    | Said::Mismatch
                    | Said::NotReplayable
                    | Said::StoreError
            )
        );
        let (true, Some(answer)) = (ran_nothing && !call.fenced, call.answer) else { continue };
        let took = (answer - call.invoke).saturating_sub(run.lag(call.actor, call.invoke, answer));
        if took > call.wait + run.operation_timeout() + run.slack() {
            let text = format!("a wait of {} ended after {}", ms(call.wait), ms(took));
            found.push(wrong("L1", call.invoke, text, call.lines));
        }
    }
}

/// Calls that waited and were handed the result of a completion that came after they had asked, and
/// how long after it.
pub fn woken(run: &Run, story: &Story) -> Vec<(usize, u64, bool)> {
    let mut woken = Vec::new();
    for (at, call) in story.calls.iter().enumerate() {
        let Some((_, _, token)) =
            call.bears.as_ref().filter(|_| call.said == Some(Said::Replayed) && !call.fenced)
        else {
            continue;
        };
        let (Some(answer), Some(holder)) = (call.answer, story.by_token(*token)) else { continue };
        let done = holder.of(story, Fun::Complete).find(|op| op.said(Said::Done));
        let Some(done) = done.filter(|op| op.invoke > call.invoke) else { continue };
        let waited = own(story, call).any(|op| op.said(Said::Busy));
        if waited {
            let late = answer.saturating_sub(done.end());
            let late = late.saturating_sub(run.lag(call.actor, done.end(), answer));
            woken.push((at, late, done.actor == call.actor));
        }
    }
    woken
}

fn own<'s>(story: &'s Story, call: &Call) -> impl Iterator<Item = &'s Op> {
    let (actor, op) = (call.actor, call.op);
    story.ops.iter().filter(move |other| other.actor == actor && other.call == Some(op))
}

/// L2: a waiter is woken: no wake-up is lost, so it has the result within the longest poll and one
/// store call.
pub fn l2(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for (at, late, _) in woken(run, story) {
        if late > LONGEST_POLL_NS + run.operation_timeout() + run.slack() {
            let call = &story.calls[at];
            let text = format!("the result reached a waiter {} after its completion", ms(late));
            found.push(wrong("L2", call.invoke, text, call.lines));
        }
    }
}

/// The latest end that the holder's lease may have had, by what it was answered and what it was
/// not.
fn latest_end(story: &Story, holder: &Tenure, before: u64) -> u64 {
    let leases = holder.ops.iter().map(|at| &story.ops[*at]).filter(|op| {
        matches!(op.fun, Fun::Acquire | Fun::Extend)
            && op.invoke < before
            && (op.said != Some(Said::Lost))
            && !op.failed
    });
    leases
        .map(|op| op.answer.or(op.gave_up).unwrap_or(u64::MAX).saturating_add(op.lease))
        .max()
        .unwrap_or(u64::MAX)
}

/// L3: a claimant that waits takes over soon after the lease is over.
pub fn l3(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    let known: Vec<(&Tenure, u64)> = story.known().collect();
    for pair in known.windows(2) {
        let (holder, taker) = (pair[0].0, pair[1].0);
        let Some(grant) = taker.grants(story).next().filter(|grant| grant.said(Said::TookOver))
        else {
            continue;
        };
        let (end, over) = (grant.end(), latest_end(story, holder, grant.end()));
        // The taker asked earlier, and was refused because of the holder's lease.
        let waited = story.ops.iter().any(|op| {
            op.actor == grant.actor
                && op.call.is_some()
                && op.call == grant.call
                && op.said(Said::Busy)
                && op.end() < over
        });
        if !waited || story.strangers(&[holder.owner, taker.owner], end) {
            continue;
        }
        let late =
            end.saturating_sub(over).saturating_sub(run.lag(grant.actor, over.min(end), end));
        if late > LONGEST_POLL_NS + run.operation_timeout() + run.slack() {
            let text =
                format!("a waiting claimant took over {} after the end of the lease", ms(late));
            found.push(wrong("L3", grant.invoke, text, grant.lines));
        }
    }
}

/// L4: an action that runs keeps its lease, as long as its process runs, no fault is on and the
/// store answers in time.
pub fn l4(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for act in &story.acts {
        let Some((end, _)) = act.end else { continue };
        let Some(holder) = story.by_token(act.token) else { continue };
        let taker = story.known().filter(|(_, token)| *token > act.token).find_map(|(taker, _)| {
            taker
                .grants(story)
                .next()
                .filter(|grant| grant.said(Said::TookOver) && grant.end() < end)
        });
        let (Some(grant), Some(first)) = (taker, holder.grants(story).next()) else { continue };
        let lease = first.lease;
        let disturbed = story.may_be_forced(holder, &[Fun::ForceRelease, Fun::ForceResolve], end)
            || run.lag(act.actor, first.invoke, grant.end()) > lease / 10
            || run.faulty(first.invoke, grant.end(), |fault| {
                fault.victim.is_none_or(|victim| victim == act.actor.proc)
            })
            || story
                .ops
                .iter()
                .filter(|op| {
                    op.actor == act.actor && op.invoke <= grant.end() && op.end() >= first.invoke
                })
                .any(|op| op.fun != Fun::Wait && op.end() - op.invoke > lease / 10);
        // On a shared machine, a shorter lease can expire without a fault.
        if !disturbed && lease >= run.slack().min(1_000_000_000) {
            let text = format!(
                "a running action lost a lease of {}, although no fault disturbed it",
                ms(lease)
            );
            found.push(wrong("L4", act.start, text, act.lines.into_iter().chain(grant.lines)));
        }
    }
}

/// L5: after the last fault nothing is left in progress, and a claimant gets an answer.
pub fn l5(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    let Some(from) = run.settled_from else { return };
    for dump in story.dumps.iter().filter(|dump| dump.said == Said::InProgress) {
        if dump.remaining.is_some_and(|left| left > 0) {
            found.push(wrong(
                "L5",
                dump.at,
                "a record was still in progress after everything had settled",
                [Some(dump.line)],
            ));
        }
    }
    let claims = story
        .calls
        .iter()
        .filter(|call| call.invoke > from && call.note.as_deref() == Some("settle"));
    // Only the last claim counts, because a claim whose answer was lost is repeated.
    if let Some(call) = claims.max_by_key(|call| call.invoke)
        && matches!(call.said, Some(Said::InFlight | Said::StoreError) | None)
    {
        let got = call.said.map_or("no answer".to_owned(), |said| format!("{said:?}"));
        let text = format!("after the last fault, a claimant got {got} instead of a final answer");
        found.push(wrong("L5", call.invoke, text, call.lines));
    }
}
