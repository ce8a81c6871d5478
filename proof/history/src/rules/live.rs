// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must happen in time: L1 to L5, for each call alone. Every bound includes the slack that the
//! manifest states, and the time in which the process did not run does not count. Without these two
//! allowances, a bound would judge the load of a shared machine. [`pace`](super::pace) applies
//! stricter bounds to all waits together.

use super::{ms, wrong};
use crate::event::{Fun, Said};
use crate::excuse::Excuse;
use crate::judge::Violation;
use crate::story::{Act, Call, Op, Run, Story, Tenure};
use crate::when::{LONGEST_POLL_NS, MS, slop};

/// L1: a call that ran nothing ends within its wait and one store call.
pub fn l1(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for call in &story.calls {
        let (true, Some(answer)) = (ran_nothing(call), call.answer) else { continue };
        let lag = run.lag(call.actor, call.invoke, answer);
        if let Some(op) = own(story, call).next() {
            story.excuse(Excuse::Lag, op, lag > 0);
        }
        let took = (answer - call.invoke).saturating_sub(lag);
        if took > call.wait + run.operation_timeout() + run.slack() {
            let text = format!("a wait of {} ended after {}", ms(call.wait), ms(took));
            found.push(wrong("L1", call.invoke, text, call.lines));
        }
    }
}

/// Returns whether the call was answered without a run of its action.
pub(super) fn ran_nothing(call: &Call) -> bool {
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
    ran_nothing && !call.fenced
}

/// A call that waited, and got the result of a completion that happened after the call had begun.
#[derive(Debug, Clone, Copy)]
pub struct Woken<'s> {
    /// The number of the call in its story.
    pub call: usize,
    /// How long after the completion the call was answered, in nanoseconds.
    pub late: u64,
    /// The completion.
    pub done: &'s Op,
}

/// Returns the calls whose wait a completion ended.
pub fn woken<'s>(run: &Run, story: &'s Story) -> Vec<Woken<'s>> {
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
            let lag = run.lag(call.actor, done.end(), answer);
            story.excuse(Excuse::Lag, done, lag > 0);
            let late = answer.saturating_sub(done.end()).saturating_sub(lag);
            woken.push(Woken { call: at, late, done });
        }
    }
    woken
}

fn own<'s>(story: &'s Story, call: &Call) -> impl Iterator<Item = &'s Op> {
    let (actor, op) = (call.actor, call.op);
    story.ops.iter().filter(move |other| other.actor == actor && other.call == Some(op))
}

/// L2: no wake-up is lost, so a waiter has the result within the longest poll and one store call.
pub fn l2(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for Woken { call, late, .. } in woken(run, story) {
        if late > LONGEST_POLL_NS + run.operation_timeout() + run.slack() {
            let call = &story.calls[call];
            let text = format!("the result reached a waiter {} after its completion", ms(late));
            found.push(wrong("L2", call.invoke, text, call.lines));
        }
    }
}

/// Returns the latest time at which the holder's lease may have ended, from its calls with and
/// without an answer.
pub(super) fn latest_end(story: &Story, holder: &Tenure, before: u64) -> u64 {
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

/// L3: a claimant that waits takes over soon after the end of the lease.
pub fn l3(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    let known: Vec<(&Tenure, u64)> = story.known().collect();
    for pair in known.windows(2) {
        let (holder, taker) = (pair[0].0, pair[1].0);
        let Some(grant) = taker.grants(story).next().filter(|grant| grant.said(Said::TookOver))
        else {
            continue;
        };
        let (end, over) = (grant.end(), latest_end(story, holder, grant.end()));
        // Judge only a taker that tried earlier, and was refused because of the holder's lease.
        let waited = story.ops.iter().any(|op| {
            op.actor == grant.actor
                && op.call.is_some()
                && op.call == grant.call
                && op.said(Said::Busy)
                && op.end() < over
        });
        let moved = holder.grants(story).any(|op| story.clock.is_moved(op.invoke, end));
        let moved = story.excuse(Excuse::Struck, grant, moved);
        if !waited || moved || story.strangers(&[holder.owner, taker.owner], grant) {
            continue;
        }
        let lag = run.lag(grant.actor, over.min(end), end);
        story.excuse(Excuse::Lag, grant, lag > 0);
        let late = end.saturating_sub(over).saturating_sub(lag);
        if late > LONGEST_POLL_NS + run.operation_timeout() + run.slack() {
            let text =
                format!("a waiting claimant took over {} after the end of the lease", ms(late));
            found.push(wrong("L3", grant.invoke, text, grant.lines));
        }
    }
}

/// The shortest lease that L4 judges. Half of it is longer than the delay that a shared machine can
/// add to a timer without a recorded lag.
const SHORTEST_KEPT_NS: u64 = 100 * MS;

/// What happened to the lease of an action that lasted longer than the lease.
enum Kept<'s> {
    /// The lease was extended in time.
    InTime,
    /// A fault excuses what happened to the lease.
    Excused,
    /// Another owner took over.
    Taken(&'s Op),
    /// The lease ended before a call was sent that could extend it.
    Ended,
}

/// L4: a running action keeps its lease as long as its process runs, no fault is active and the
/// store answers in time. The lease is extended before it ends, even if no other caller waits for
/// it, and no owner takes over.
pub fn l4(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for act in &story.acts {
        let Some((lease, kept)) = kept(run, story, act) else { continue };
        let (text, lines) = match kept {
            Kept::InTime | Kept::Excused => continue,
            Kept::Taken(grant) => ("lost a lease", grant.lines),
            Kept::Ended => ("sent no heartbeat during a lease", [None; 2]),
        };
        let text =
            format!("a running action {text} of {}, although no fault disturbed it", ms(lease));
        found.push(wrong("L4", act.start, text, act.lines.into_iter().chain(lines)));
    }
}

/// If the action lasted longer than its lease, returns the lease and what happened to it.
fn kept<'s>(run: &Run, story: &'s Story, act: &Act) -> Option<(u64, Kept<'s>)> {
    let (end, _) = act.end?;
    let holder = story.by_token(act.token)?;
    let first = holder.grants(story).next()?;
    let lease = first.lease;
    if end <= first.end().saturating_add(lease) {
        return None;
    }
    // Do not judge a short lease, because on a shared machine it can expire without a fault.
    let is_short = lease < run.slack().min(SHORTEST_KEPT_NS);
    if story.excuse(Excuse::ShortLease, first, is_short) {
        return None;
    }
    let excused = |by: u64| disturbed(run, story, (act, holder, first), by);
    let taker = story.known().filter(|(_, token)| *token > act.token).find_map(|(taker, _)| {
        let grant = taker.grants(story).next()?;
        let later = grant.end() > first.invoke && grant.end() < end;
        (grant.said(Said::TookOver) && later).then_some(grant)
    });
    let lapsed = lapse(story, holder, end);
    let by = taker.map(Op::end).or(lapsed).unwrap_or(end);
    let kept = match (excused(by), taker, lapsed) {
        (true, ..) => Kept::Excused,
        (false, Some(grant), _) => Kept::Taken(grant),
        (false, None, Some(_)) => Kept::Ended,
        (false, None, None) => Kept::InTime,
    };
    Some((lease, kept))
}

/// Returns the latest time at which the holder's lease ended while its action ran, if no call that
/// could extend it had been sent by then.
fn lapse(story: &Story, holder: &Tenure, end: u64) -> Option<u64> {
    let mut until = 0;
    for op in holder.ops.iter().map(|at| &story.ops[*at]) {
        let asks = matches!(op.fun, Fun::Acquire | Fun::Extend) && !op.failed;
        if !asks || op.invoke >= end {
            continue;
        }
        if until > 0 && op.invoke > until {
            return Some(until);
        }
        if op.said(Said::Lost) {
            return None;
        }
        let by = op.answer.or(op.gave_up).unwrap_or(u64::MAX / 4);
        until = until.max(by.saturating_add(op.lease).saturating_add(slop(op.lease)));
    }
    (until < end).then_some(until)
}

/// Returns whether a fault or a slow call may have cost the holder its lease by the time `by`.
fn disturbed(
    run: &Run,
    story: &Story,
    (act, holder, first): (&Act, &Tenure, &Op),
    by: u64,
) -> bool {
    let lease = first.lease;
    let struck = run.faulty(first.invoke, by, |fault| {
        // A lease does not depend on its holder's wall clock (ACQ-7), and a heartbeat follows its
        // slot (STO-8).
        !matches!(fault.name.as_str(), "leap" | "slots")
            && fault.victim.is_none_or(|victim| victim == act.actor.proc)
    });
    let mut beside = story
        .ops
        .iter()
        .filter(|op| op.actor == act.actor && op.invoke <= by && op.end() >= first.invoke);
    let slow = beside.any(|op| op.fun != Fun::Wait && op.end() - op.invoke > lease / 10);
    let lag = run.lag(act.actor, first.invoke, by) > lease / 10;
    story.may_be_forced(holder, &[Fun::ForceRelease, Fun::ForceResolve], by, first)
        || story.excuse(Excuse::Struck, first, struck || slow)
        || story.excuse(Excuse::Lag, first, lag)
}

/// L5: after the last fault, no record is left in progress, and a claimant gets an answer.
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
    let mut claims: Vec<&Call> = claims.collect();
    claims.sort_by_key(|call| call.invoke);
    let Some((call, earlier)) = claims.split_last() else { return };
    for op in earlier.iter().flat_map(|call| own(story, call)) {
        story.excuse(Excuse::ClaimedAgain, op, true);
    }
    if matches!(call.said, Some(Said::InFlight | Said::StoreError) | None) {
        let got = call.said.map_or("no answer".to_owned(), |said| format!("{said:?}"));
        let text = format!("after the last fault, a claimant got {got} instead of a final answer");
        found.push(wrong("L5", call.invoke, text, call.lines));
    }
}
