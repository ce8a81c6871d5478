// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operators do to records: OPS-3, OPS-4.

use super::wrong;
use crate::event::{Fun, Said};
use crate::excuse::Excuse;
use crate::judge::Violation;
use crate::story::{Op, Run, Story, Tenure};
use crate::when::slop;

fn is_ending(op: &Op) -> bool {
    matches!(op.fun, Fun::ForceRelease | Fun::ForceResolve)
}

fn both(first: &Op, second: &Op) -> [Option<crate::story::Line>; 4] {
    [first.lines[0], first.lines[1], second.lines[0], second.lines[1]]
}

/// Returns whether the work of `holder` may have had a result before the call `judged` was
/// answered.
fn may_be_finished(story: &Story, holder: &Tenure, judged: &Op) -> bool {
    let mut completions = holder.of(story, Fun::Complete);
    completions.any(|op| {
        let sent = op.invoke <= judged.end() && !op.failed;
        sent && (!op.said(Said::Lost) || story.excuse(Excuse::Repeated, judged, op.twice))
    }) || story.may_be_forced(holder, &[Fun::ForceResolve], judged.end(), judged)
}

/// OPS-3: an intervention changes only the grant that its operator saw, and ends a live lease only
/// on request; a refusal describes the record correctly.
pub fn ops_3(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    for op in story.ops.iter().filter(|op| op.fun.is_force()) {
        let (Some(asked), Some(said)) = (op.asked, op.said) else { continue };
        match said {
            Said::Done => changed(story, asked, op, found),
            Said::AnotherToken if op.token == Some(asked) => {
                let text = format!(
                    "the call was refused because the token differs, but it is the same: {asked}"
                );
                found.push(wrong("OPS-3", op.invoke, text, op.lines));
            }
            Said::Busy if is_ending(op) && op.even_if_live => {
                let text = "the call was refused because of a live lease, but was allowed to end \
                    a live lease";
                found.push(wrong("OPS-3", op.invoke, text, op.lines));
            }
            Said::Finished => {
                let holder = story.by_token(asked);
                if holder.is_some_and(|holder| !may_be_finished(story, holder, op)) {
                    let text = format!(
                        "the answer says that the work of token {asked} is finished, but it is not"
                    );
                    found.push(wrong("OPS-3", op.invoke, text, op.lines));
                }
            }
            _ => {}
        }
    }
}

/// Checks a call that has changed the record.
fn changed(story: &Story, asked: u64, op: &Op, found: &mut Vec<Violation>) {
    let newer = story
        .known()
        .filter(|(_, token)| *token > asked)
        .filter_map(|(taker, token)| Some((token, taker.grants(story).next()?)))
        .find(|(_, grant)| grant.end() < op.invoke);
    if let Some((token, grant)) = newer {
        let text = format!("{:?} of token {asked} changed the record of token {token}", op.fun);
        found.push(wrong("OPS-3", op.invoke, text, both(grant, op)));
        return;
    }
    let Some(holder) = story.by_token(asked) else { return };
    if !is_ending(op) {
        if !may_be_finished(story, holder, op) {
            let text = format!("{:?} changed a record that had no result", op.fun);
            found.push(wrong("OPS-3", op.invoke, text, op.lines));
        }
        return;
    }
    if op.even_if_live {
        return;
    }
    // Find out whether the lease certainly ran from before the call was sent until after it was
    // answered.
    let others = story.forces(holder).any(|other| other.invoke < op.invoke && is_ending(other));
    let ended = |op: &Op| op.fun == Fun::Complete || op.fun == Fun::Release;
    let mut own = holder.ops.iter().map(|at| &story.ops[*at]);
    let ended = own.any(|own| ended(own) && own.invoke <= op.end());
    // If calls of the holder were under way at the same time, any of them may have taken effect
    // last. The lease may run from the time at which that call was sent.
    let last = holder.leases(story).filter(|lease| lease.end() < op.invoke);
    let Some(last) = last.max_by_key(|lease| lease.invoke) else { return };
    let beside: Vec<&Op> = holder.resets(story, last, op.end()).collect();
    story.excuse(Excuse::Beside, op, beside.len() > 1);
    let left = beside.iter().map(|beat| story.left_of(beat, beat.lease, op.end()));
    if !ended && !others && left.min().unwrap_or(0) > slop(last.lease) {
        let text = format!("{:?} ended a live lease without the request to do so", op.fun);
        found.push(wrong("OPS-3", op.invoke, text, both(last, op)));
    }
}

/// OPS-4: after a release or a resolve, the former holder changes nothing; a resolved result stays
/// for its ttl; a forgotten or erased result is not returned again.
pub fn ops_4(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    for op in story.ops.iter().filter(|op| op.fun.is_force() && op.said(Said::Done)) {
        let Some(asked) = op.asked else { continue };
        if is_ending(op) {
            if let Some(holder) = story.by_token(asked) {
                fenced(story, holder, op, found);
            }
        } else {
            let back = story.ops.iter().find(|answer| {
                let borne = answer.bears.as_ref().is_some_and(|(scope, key, token)| {
                    *token == asked && story.is_named(scope, key)
                });
                borne && answer.said(Said::Complete) && answer.invoke > op.end()
            });
            if let Some(back) = back {
                let text = format!("a call got the result of token {asked} after {:?}", op.fun);
                found.push(wrong("OPS-4", op.invoke, text, both(op, back)));
            }
        }
        if op.fun == Fun::ForceResolve {
            resolved(story, asked, op, found);
        }
    }
}

/// Checks that the calls of the former holder are refused, and that a completion and a resolve
/// never both count.
fn fenced(story: &Story, holder: &Tenure, op: &Op, found: &mut Vec<Violation>) {
    let writes = holder.of(story, Fun::Complete).chain(holder.of(story, Fun::Extend));
    for write in writes.filter(|write| !holder.may_have_asked(story, write)) {
        let accepted =
            write.said(Said::Done) || (write.fun == Fun::Complete && write.said(Said::AlreadyDone));
        let both_count = op.fun == Fun::ForceResolve && write.fun == Fun::Complete;
        // An operator's call that was answered with `Done` has taken effect by its answer, so a
        // call of the holder that is sent after the answer must be refused.
        if accepted && (write.invoke > op.end() || both_count) {
            let text = format!(
                "{:?} was accepted although an operator had ended the lease of its holder",
                write.fun
            );
            found.push(wrong("OPS-4", op.invoke, text, both(op, write)));
        }
    }
}

/// Checks that a resolved result stays for its ttl, unless an operator forgets it.
fn resolved(story: &Story, asked: u64, op: &Op, found: &mut Vec<Violation>) {
    let forgets = |judged: &Op| {
        let forgotten = story.ops.iter().any(|other| {
            other.fun == Fun::ForceForget
                && other.asked == Some(asked)
                && other.invoke <= judged.end()
                && !other.failed
                && (other.said(Said::Done) || other.is_info() || other.twice)
        });
        story.excuse(Excuse::Operator, judged, forgotten)
    };
    let gone = story.ops.iter().find(|answer| {
        answer.invoke > op.end()
            && story.left_of(op, op.ttl, answer.end()) > slop(op.ttl)
            && (answer.is_grant() || answer.said(Said::Busy) || answer.said(Said::Absent))
            && !forgets(answer)
    });
    if let Some(gone) = gone {
        let text = format!("token {asked} was resolved, but its result is missing");
        found.push(wrong("OPS-4", op.invoke, text, both(op, gone)));
    }
}
