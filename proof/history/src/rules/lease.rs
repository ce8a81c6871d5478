// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who holds a lease: S1, S2, S17.

use super::{ms, wrong};
use crate::event::{Fun, Said};
use crate::judge::Violation;
use crate::story::{Op, Run, Story, Tenure};
use crate::when::slop;

/// Returns the call of `holder` whose lease was certainly not over when `grant` was answered. S17
/// and S3 judge the calls that the holder sent after that answer. S3, S6 and S9 judge an owner that
/// may have ended its lease itself.
fn not_over<'s>(story: &'s Story, holder: &Tenure, grant: &Op) -> Option<&'s Op> {
    let granted = grant.answer?;
    if holder.may_have_ended(story, grant) {
        return None;
    }
    let own: Vec<usize> = holder.ops.clone();
    own.into_iter()
        .map(|at| &story.ops[at])
        .filter(|op| op.is_grant() || (op.fun == Fun::Extend && op.said(Said::Done)))
        .filter(|op| op.invoke <= granted)
        .filter(|op| {
            let mut later = holder.resets(story, op, granted);
            let is_over = |op: &Op| story.left_of(op, op.lease, granted) == 0;
            !(story.clock.is_set_back(op.invoke, granted) && later.any(is_over))
        })
        .find(|op| story.left_of(op, op.lease, granted) > slop(op.lease))
}

/// Returns the first grant of each owner whose token is known, together with a lease of another
/// owner that has a smaller token and was certainly not over by then, and with the token of the
/// grant.
fn early(story: &Story) -> impl Iterator<Item = (&Op, &Op, u64)> {
    let known: Vec<(&Tenure, u64)> = story.known().collect();
    let mut found = Vec::new();
    for (at, (taker, token)) in known.iter().enumerate() {
        let Some(grant) = taker.grants(story).next() else { continue };
        let before = known[..at].iter().filter(|(holder, _)| holder.owner != taker.owner);
        for (holder, _) in before {
            if let Some(lease) = not_over(story, holder, grant) {
                found.push((grant, lease, *token));
            }
        }
    }
    found.into_iter()
}

/// S1 is violated if a grant says that the key was free although another owner's lease was neither
/// over nor released.
pub fn s1(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    for (grant, lease, token) in early(story).filter(|(grant, _, _)| grant.said(Said::Granted)) {
        found.push(wrong(
            "S1",
            lease.invoke,
            format!(
                "token {token} was granted {} after the start of another lease of {}",
                within(grant, lease),
                ms(lease.lease)
            ),
            [lease.lines[0], lease.lines[1], grant.lines[0], grant.lines[1]],
        ));
    }
}

fn within(grant: &Op, lease: &Op) -> String {
    ms(grant.end().saturating_sub(lease.invoke))
}

/// S2 is violated by a takeover before the end of the lease that it took over, by a second takeover
/// of the same predecessor, by one without a predecessor, and by one that does not report itself as
/// a takeover.
pub fn s2(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    for (grant, lease, token) in early(story).filter(|(grant, _, _)| grant.said(Said::TookOver)) {
        found.push(wrong(
            "S2",
            lease.invoke,
            format!(
                "token {token} took over {} after the start of a lease of {}",
                within(grant, lease),
                ms(lease.lease)
            ),
            [lease.lines[0], lease.lines[1], grant.lines[0], grant.lines[1]],
        ));
    }
    let known: Vec<(&Tenure, u64)> = story.known().collect();
    for (at, (taker, token)) in known.iter().enumerate() {
        let Some(grant) = taker.grants(story).next() else { continue };
        let shown = [grant.lines[0], grant.lines[1]];
        let Some((holder, last)) = at.checked_sub(1).map(|before| known[before]) else {
            if !story.strangers(&[taker.owner], grant) && grant.said(Said::TookOver) {
                found.push(wrong(
                    "S2",
                    grant.invoke,
                    format!("token {token} took over, but the key was free"),
                    shown,
                ));
            }
            continue;
        };
        if last == *token {
            let text = format!("token {token} was granted to two owners: two takers of one lease");
            let first = holder.grants(story).next().map_or([None; 2], |op| op.lines);
            found.push(wrong("S2", grant.invoke, text, first.into_iter().chain(shown)));
            continue;
        }
        // After its ttl, a record counts as absent. This also applies to a record that the taker
        // itself left by a takeover whose answer was lost.
        let mut left = holder.grants(story).chain(taker.maybe_grants(story));
        let gone = left.any(|op| {
            let mut resets = holder.resets(story, op, grant.end()).chain([op]);
            resets.any(|reset| story.left_of(reset, op.ttl, grant.end()) == 0)
        });
        // The owner may also repeat the request of a takeover whose answer was lost.
        let strangers = story.strangers(&[holder.owner, taker.owner], grant);
        let silent = grant.said(Said::Granted)
            && !strangers
            && !holder.may_have_ended(story, grant)
            // An operator may also have ended a lease that the taker got without an answer.
            && !story.may_be_forced(taker, &[Fun::ForceRelease], grant.end(), grant)
            && !gone
            && holder.grants(story).any(|op| op.invoke < grant.end())
            && !early(story).any(|(early, _, _)| early.invoke == grant.invoke);
        if silent {
            let text = format!(
                "token {token} replaced the unfinished lease of token {last}, but its answer \
                 does not say so (ACQ-12)"
            );
            found.push(wrong("S2", grant.invoke, text, shown));
        }
    }
}

/// S17 is violated if an extension is accepted although, before it was sent, its owner had
/// completed or released, or another owner had got the lease.
pub fn s17(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    for holder in &story.tenures {
        let ended = holder
            .of(story, Fun::Complete)
            .chain(holder.of(story, Fun::Release))
            .filter(|op| op.said(Said::Done) || op.said(Said::AlreadyDone));
        let ended: Vec<&Op> = ended.collect();
        let accepted = holder.of(story, Fun::Extend).filter(|op| op.said(Said::Done));
        for extend in accepted.filter(|op| !holder.may_have_asked(story, op)) {
            let later = story
                .known()
                .filter(|(taker, token)| {
                    taker.owner != holder.owner && holder.token.is_some_and(|own| own < *token)
                })
                .filter_map(|(taker, _)| taker.grants(story).next());
            let before = ended.iter().copied().chain(later).find(|op| op.end() < extend.invoke);
            if let Some(before) = before {
                let what = if before.is_grant() {
                    "another owner was granted the lease"
                } else {
                    "its owner had ended the lease"
                };
                let lines = [before.lines[0], before.lines[1], extend.lines[0], extend.lines[1]];
                found.push(wrong(
                    "S17",
                    before.invoke,
                    format!("an extension was accepted after {what}"),
                    lines,
                ));
            }
        }
    }
}
