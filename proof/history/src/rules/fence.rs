// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a stale owner may do: S3, S9.

use super::wrong;
use crate::event::{Fun, Said};
use crate::judge::Violation;
use crate::story::{Op, Run, Story, Tenure};
use crate::when::slop;

/// Returns the first grant of each other owner with a larger token than the holder's.
fn later<'s>(story: &'s Story, holder: &Tenure) -> Vec<&'s Op> {
    let Some(own) = holder.token else { return Vec::new() };
    let taken: Vec<&'s Tenure> = story
        .tenures
        .iter()
        .filter(|taker| taker.owner != holder.owner && taker.token.is_some_and(|token| token > own))
        .collect();
    taken.into_iter().filter_map(|taker| taker.grants(story).next()).collect()
}

/// S3 is violated if a completion or a release is accepted from an owner that another one has
/// replaced, or is refused to the owner that is still recorded, even after the end of its lease
/// (CMP-2).
pub fn s3(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    for holder in &story.tenures {
        let takers = later(story, holder);
        for op in holder.of(story, Fun::Complete).chain(holder.of(story, Fun::Release)) {
            let accepted =
                op.said(Said::Done) || (op.fun == Fun::Complete && op.said(Said::AlreadyDone));
            if !accepted || holder.may_have_asked(story, op) {
                continue;
            }
            // If a completion and the grant of a larger token both took effect within the ttl, one
            // of them is wrong, whatever their order.
            let keeps = op.fun == Fun::Complete && op.said(Said::Done);
            let stale = takers.iter().find(|grant| {
                let forgotten = story.may_be_forced(holder, &[Fun::ForceForget], grant.end(), op);
                let kept = keeps && story.left_of(op, op.ttl, grant.end()) > slop(op.ttl);
                let together = kept && grant.invoke <= op.end() && !forgotten;
                grant.end() < op.invoke || together
            });
            if let Some(grant) = stale {
                let text = format!(
                    "{:?} was accepted although another owner had replaced the sender",
                    op.fun
                );
                let lines = [grant.lines[0], grant.lines[1], op.lines[0], op.lines[1]];
                found.push(wrong("S3", grant.invoke, text, lines));
            }
        }
        refused(story, holder, &takers, found);
    }
}

/// Finds refusals of the owner that is still recorded.
fn refused(story: &Story, holder: &Tenure, takers: &[&Op], found: &mut Vec<Violation>) {
    let Some(first) = holder.grants(story).next() else { return };
    let forces = [Fun::ForceRelease, Fun::ForceResolve, Fun::ForceForget];
    // After the ttl of the acquire, a purge may have removed the record (STO-4).
    let kept = first.ttl;
    let own = |fun: Fun, at: u64| holder.of(story, fun).any(|op| op.invoke <= at && !op.failed);
    let calls = holder.of(story, Fun::Complete).chain(holder.of(story, Fun::Extend));
    for op in calls.filter(|op| op.said(Said::Lost)) {
        let end = op.end();
        let replaced = story.strangers(&[holder.owner], op)
            || takers.iter().any(|grant| grant.invoke <= end)
            || own(Fun::Release, end)
            || story.may_be_forced(holder, &forces, end, op)
            || (op.fun == Fun::Extend && own(Fun::Complete, end));
        let purged =
            holder.resets(story, first, end).any(|op| story.left_of(op, kept, end) <= slop(kept));
        let completed_before =
            holder.of(story, Fun::Complete).any(|other| other.invoke < op.invoke && !other.failed);
        let excused = replaced || purged || (op.fun == Fun::Complete && completed_before);
        if !excused && op.invoke > first.end() {
            let text = format!("{:?} was refused although its owner was still recorded", op.fun);
            found.push(wrong(
                "S3",
                op.invoke,
                text,
                [first.lines[0], first.lines[1], op.lines[0], op.lines[1]],
            ));
        }
    }
}

/// S9: after a release, there is no record: the next grant is not a takeover, its token is larger,
/// and the owner that released never completes. Tokens follow the order of the grants (ACQ-10).
pub fn s9(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    let known: Vec<(&Tenure, u64)> = story.known().collect();
    for (at, (holder, token)) in known.iter().enumerate() {
        let Some(release) = holder.of(story, Fun::Release).find(|op| op.said(Said::Done)) else {
            continue;
        };
        let shown = |op: &Op| [release.lines[0], release.lines[1], op.lines[0], op.lines[1]];
        // An acquire that was delayed or delivered twice may have reached the store after the
        // release. The taker may then have taken over the lease that this acquire was granted,
        // which is allowed.
        if let Some((taker, _)) = known.get(at + 1)
            && let Some(grant) = taker.grants(story).next()
            && !story.strangers(&[taker.owner], grant)
            && grant.said(Said::TookOver)
            && grant.invoke > release.end()
        {
            found.push(wrong(
                "S9",
                release.invoke,
                "an owner took over a lease that had been released",
                shown(grant),
            ));
        }
        let back = holder
            .of(story, Fun::Complete)
            .filter(|op| op.said(Said::Done) || op.said(Said::AlreadyDone));
        for op in back.filter(|op| op.invoke > release.end()) {
            let text =
                format!("the owner of token {token} completed after it had released its lease");
            found.push(wrong("S9", release.invoke, text, shown(op)));
        }
    }
    // A grant must have a larger token than each grant that was answered before this one was sent.
    let mut answered: Vec<&Op> = story.ops.iter().filter(|op| op.is_grant()).collect();
    answered.sort_by_key(|op| op.end());
    let mut sent: Vec<&Op> = answered.clone();
    sent.sort_by_key(|op| op.invoke);
    let mut next = answered.iter().copied().peekable();
    let mut top: Option<&Op> = None;
    for grant in sent {
        while let Some(before) = next.next_if(|before| before.end() < grant.invoke) {
            if top.is_none_or(|top| top.token < before.token) {
                top = Some(before);
            }
        }
        // Skip a grant of the same owner, because an owner that acquires again gets its earlier
        // token (ACQ-9).
        let Some(top) = top.filter(|top| top.owner != grant.owner) else { continue };
        if grant.token < top.token {
            let text = format!(
                "token {} was granted after token {}",
                grant.token.unwrap_or(0),
                top.token.unwrap_or(0)
            );
            found.push(wrong("S9", top.invoke, text, top.lines.into_iter().chain(grant.lines)));
        }
    }
}
