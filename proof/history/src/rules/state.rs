// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a record: S12, S13, S14; and what its token guards outside of the store: ACQ-10.

use super::{ms, wrong};
use crate::event::{Fun, Said};
use crate::excuse::Excuse;
use crate::judge::Violation;
use crate::story::{Fault, Op, Run, Story};
use crate::when::slop;

/// S12: a value names the identity that it was made for, and is returned for that identity only.
pub fn s12(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    let foreign = |bears: &Option<(String, String, u64)>| {
        bears.as_ref().is_some_and(|(scope, key, _)| !story.is_named(scope, key))
    };
    let ops = story.ops.iter().filter(|op| op.fun != Fun::Complete && foreign(&op.bears));
    let calls = story.calls.iter().filter(|call| foreign(&call.bears));
    let all =
        ops.map(|op| (op.invoke, op.lines)).chain(calls.map(|call| (call.invoke, call.lines)));
    for (at, lines) in all {
        found.push(wrong("S12", at, "a call got the value of another identity", lines));
    }
}

/// S13: every record that the run wrote can be read, and the record at the end of the run is a
/// lease or a result, with the newest token of those that no failover has lost.
pub fn s13(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for op in story.ops.iter().filter(|op| op.said(Said::Corrupt)) {
        found.push(wrong("S13", op.invoke, "a record cannot be read", op.lines));
    }
    for dump in &story.dumps {
        let text = match (dump.said, dump.bytes) {
            (Said::InProgress, 0) | (Said::Complete, 1..) => None,
            (Said::InProgress, _) => Some("a record in progress has a value"),
            (Said::Complete, _) => Some("a complete record has no bytes"),
            _ => Some("a record has an unknown state"),
        };
        if let Some(text) = text {
            found.push(wrong("S13", dump.at, text, [Some(dump.line)]));
        }
        let newest = story.known().filter_map(|(tenure, token)| {
            let grant = tenure.grants(story).find(|op| op.end() < dump.at)?;
            Some((token, grant))
        });
        if let Some((token, grant)) = newest.max_by_key(|(token, _)| *token)
            && dump.token < token
        {
            let text = format!(
                "the record has token {}, but the larger token {token} was granted \
                    before",
                dump.token
            );
            let wrong = wrong("S13", dump.at, text, [grant.lines[1], Some(dump.line)]);
            // A failover may have lost the grant. Until another call uses the identity, the record
            // then has a smaller token.
            let lost = |fault: &Fault| fault.lossy;
            let documented = run.faulty(grant.invoke, grant.end(), lost)
                || story.moves.iter().any(|one| one.lossy && one.meets(grant.invoke, dump.at));
            story.excuse(Excuse::FailOver, grant, documented);
            found.push(Violation { documented, ..wrong });
        }
    }
}

/// S14: the remaining time of a lease in an answer agrees with the holder's own calls, whatever the
/// clocks of the clients show.
pub fn s14(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    for op in story.ops.iter().filter(|op| op.said(Said::Busy)) {
        let (Some(remaining), Some(token), Some(end)) = (op.remaining, op.token, op.answer) else {
            continue;
        };
        let Some(holder) = story.by_token(token) else { continue };
        // The lease cannot end after the longest lease that the holder may have got by then.
        let mut latest = 0;
        let asked = holder.ops.iter().map(|at| &story.ops[*at]).filter(|op| {
            matches!(op.fun, Fun::Acquire | Fun::Extend) && !op.failed && op.invoke <= end
        });
        let mut asked: Vec<&Op> = asked.collect();
        asked.sort_by_key(|lease| !(lease.is_grant() || lease.said(Said::Done)));
        for lease in asked {
            let ends = lease.clock.1.saturating_add(lease.lease).saturating_add(slop(lease.lease));
            let sure = lease.is_grant() || lease.said(Said::Done);
            if ends > latest
                && (sure
                    || story.excuse(lost(lease), op, lease.is_info())
                    || story.excuse(Excuse::Repeated, op, lease.twice))
            {
                latest = ends;
            }
        }
        // A Redis Cluster moves a record with the time that it has left, so the time on the way is
        // added. The slot's move took at least as long.
        let since = holder.grants(story).map(|grant| grant.invoke).min().unwrap_or(0);
        let moves = story.moves.iter().filter(|one| one.meets(since, end));
        latest = moves.fold(latest, |latest: u64, one| latest.saturating_add(one.to - one.from));
        // The lease cannot end before the last lease that the holder certainly got before the call.
        let sure = holder.leases(story).filter(|lease| lease.end() < op.invoke);
        let last = sure.max_by_key(|lease| lease.invoke);
        // If two calls were under way at the same time, the first one sent may have taken effect
        // second. A lease that a heartbeat extends runs from the moment at which the heartbeat
        // takes effect. A lease that an acquire grants runs from the start of the acquire's
        // statement.
        let together = |last: &Op| {
            let beside: Vec<&Op> = holder.resets(story, last, end).collect();
            story.excuse(Excuse::Beside, op, beside.len() > 1);
            let counted = |op: &Op| match op.fun {
                Fun::Extend => {
                    let from = op.invoke.max(last.invoke);
                    story.clock.earliest(from, op.end()).saturating_add(op.lease)
                }
                _ => op.clock.0.saturating_add(op.lease),
            };
            beside.into_iter().map(counted).min().unwrap_or(0)
        };
        let earliest = last.map_or(0, |lease| together(lease).saturating_sub(slop(lease.lease)));
        let (from, to) =
            (op.clock.0.saturating_add(remaining), op.clock.1.saturating_add(remaining));
        // The remaining time is zero if a lock prevents a takeover.
        let held_back = story.excuse(Excuse::HeldBack, op, remaining == 0);
        if !held_back && (from > latest || to < earliest) {
            let lines = last.map_or([None; 2], |lease: &Op| lease.lines);
            let text = format!(
                "an answer says that {} of a lease remain, which contradicts the holder's calls",
                ms(remaining)
            );
            found.push(wrong("S14", op.invoke, text, lines.into_iter().chain(op.lines)));
        }
    }
}

fn lost(lease: &Op) -> Excuse {
    match lease.fun {
        Fun::Extend => Excuse::LostBeat,
        _ => Excuse::Unanswered,
    }
}

/// ACQ-10: a resource that refuses an older token sees effects in the order of the grants. Effects
/// in another order are a violation if the token guarded the run's effects. If only the lease
/// guarded them, such effects are expected, and show that the faults are strong enough.
pub fn acq_10(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    if run.manifest.guard != "none" {
        found.extend(disorder(story));
    }
}

fn disorder(story: &Story) -> Option<Violation> {
    let mut top: Option<&crate::story::Moment> = None;
    for effect in story.effects.iter().filter(|effect| effect.said == Said::Applied) {
        if let Some(before) = top.filter(|before| before.token > effect.token) {
            let text = format!(
                "the effect of token {} came after the effect of token {}",
                effect.token, before.token
            );
            return Some(wrong("ACQ-10", effect.at, text, [Some(before.line), Some(effect.line)]));
        }
        top = Some(effect);
    }
    None
}
