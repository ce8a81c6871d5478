// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is stored: S4 to S8.

use super::{ms, wrong};
use crate::event::{Fun, Said};
use crate::excuse::Excuse;
use crate::judge::Violation;
use crate::story::{Completed, Fault, Op, Run, Story, Tenure};
use crate::when::{MS, slop};

/// The interventions after which finished work may run again.
const FORGET: [Fun; 1] = [Fun::ForceForget];

/// The longest time by which `InnoDB` may show a commit before it is durable.
const SHOWN_EARLY: u64 = 1_000 * MS;

fn accepted<'s>(story: &'s Story, holder: &'s Tenure) -> impl Iterator<Item = &'s Op> {
    holder.of(story, Fun::Complete).filter(|op| op.said(Said::Done))
}

/// S4 is violated if two completions were accepted within one ttl, of two owners or with two
/// values.
pub fn s4(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    let of = |holder| accepted(story, holder).map(move |op| (holder, op));
    let mut done: Vec<(&Tenure, &Op)> = story.tenures.iter().flat_map(of).collect();
    done.sort_by_key(|(_, op)| op.invoke);
    for (at, (holder, first)) in done.iter().enumerate() {
        for (_, second) in &done[at + 1..] {
            let same = (first.owner, first.value) == (second.owner, second.value);
            let forgotten = story.may_be_forced(holder, &FORGET, second.end(), second);
            if !same
                && !forgotten
                && story.left_of(first, first.ttl, second.end()) > slop(first.ttl)
            {
                let lines = [first.lines[0], first.lines[1], second.lines[0], second.lines[1]];
                let text =
                    format!("two completions were accepted within a ttl of {}", ms(first.ttl));
                found.push(wrong("S4", first.invoke, text, lines));
            }
        }
    }
}

/// Returns the answers that contained a stored value of this identity; S12 judges the others.
fn replays(story: &Story) -> impl Iterator<Item = (&Op, u64)> {
    story.ops.iter().filter(|op| op.said(Said::Complete)).filter_map(|op| {
        let (scope, key, token) = op.bears.as_ref()?;
        story.is_named(scope, key).then_some((op, *token))
    })
}

/// S5: within one ttl, every answer has the same value with the same fingerprint, and an older
/// value never returns.
pub fn s5(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    let mut all: Vec<(&Op, u64)> = replays(story).collect();
    all.sort_by_key(|(op, _)| op.end());
    let mut newest: Option<(&Op, u64)> = None;
    for (at, (op, token)) in all.iter().enumerate() {
        if let Some((before, larger)) =
            newest.filter(|(before, larger)| larger > token && before.end() < op.invoke)
        {
            let text =
                format!("a call got the value of token {token} after the value of token {larger}");
            found.push(wrong("S5", before.invoke, text, before.lines.into_iter().chain(op.lines)));
        }
        if newest.is_none_or(|(_, largest)| largest < *token) {
            newest = Some((op, *token));
        }
        let same = all[..at].iter().rev().find(|(_, other)| other == token);
        if let Some((before, _)) =
            same.filter(|(before, _)| (before.value, before.stored_fp) != (op.value, op.stored_fp))
        {
            let text = format!("the result of token {token} or its fingerprint changed");
            found.push(wrong("S5", before.invoke, text, before.lines.into_iter().chain(op.lines)));
        }
    }
    for holder in &story.tenures {
        let (Some(own), Some(done)) = (holder.token, holder.completed(story)) else { continue };
        let within = |op: &Op| op.invoke > done.by && done.stands(story, op.end());
        for (op, token) in all.iter().filter(|(op, token)| *token != own && within(op)) {
            if story.may_be_forced(holder, &FORGET, op.end(), op) {
                continue;
            }
            let text = format!(
                "token {own} completed, but within its ttl a call got the value of token {token}"
            );
            let documented = shown_too_early(run, story, &done, op);
            let wrong = wrong("S5", done.from, text, [done.line, op.lines[0], op.lines[1]]);
            found.push(Violation { documented, ..wrong });
        }
    }
}

/// Returns whether the server may have died after it showed a commit too early. InnoDB shows a
/// commit before its log is on the disk, so it may forget a result that was already replayed, but
/// whose completion was never acknowledged.
fn shown_too_early(run: &Run, story: &Story, done: &Completed, later: &Op) -> bool {
    let died = |fault: &Fault| fault.name == "restart" && fault.from >= done.from;
    let shown = shows_early(run) && !done.acknowledged && run.faulty(done.from, later.invoke, died);
    story.excuse(Excuse::ShownEarly, later, shown)
}

/// Returns whether the call was told of a lease that the server may have forgotten when it died:
/// no caller got the answer to the lease's grant, and no call saw its token after the server's
/// death.
pub(super) fn lease_shown_too_early(run: &Run, story: &Story, told: &Op) -> bool {
    let (true, true, Some(token)) = (shows_early(run), told.said(Said::Busy), told.token) else {
        return false;
    };
    let seen_later = |fault: &Fault| {
        let up = fault.real.map_or(fault.to, |(_, up)| Some(up));
        let is_later = |op: &Op| up.is_some_and(|up| op.end() > up);
        // A waiter names the token that it saw before.
        let mut answers =
            story.ops.iter().filter(|op| op.fun != Fun::Wait && op.token == Some(token));
        answers.any(is_later)
    };
    let died = |fault: &Fault| fault.name == "restart" && !seen_later(fault);
    let last = told.end().saturating_add(SHOWN_EARLY);
    let shown = story.by_token(token).is_none() && run.faulty(told.invoke, last, died);
    story.excuse(Excuse::ShownEarly, told, shown)
}

fn shows_early(run: &Run) -> bool {
    matches!(run.manifest.store.as_str(), "mariadb" | "mysql")
}

/// S6 is violated if, within the ttl of an acknowledged completion, there is no record, or a
/// different one.
pub fn s6(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for holder in &story.tenures {
        let Some(done) = holder.completed(story) else { continue };
        let gone = story.ops.iter().find(|op| {
            op.invoke > done.by
                && done.stands(story, op.end())
                && (op.is_grant() || op.said(Said::Busy) || op.said(Said::Absent))
                && !story.may_be_forced(holder, &FORGET, op.end(), op)
        });
        if let Some(op) = gone {
            let text = format!(
                "the record is missing {} after its acknowledged completion, within its ttl",
                ms(op.end().saturating_sub(done.by))
            );
            let documented = shown_too_early(run, story, &done, op);
            let wrong = wrong("S6", done.by, text, [done.line, op.lines[0], op.lines[1]]);
            found.push(Violation { documented, ..wrong });
        }
    }
}

/// S7: the store and the engine return exactly the bytes that the named owner sent. These bytes may
/// also come from a refused completion whose connection may have broken, because that completion
/// can have taken effect when it was first sent, and have been refused when it was sent again after
/// its ttl.
pub fn s7(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    let sent = |token: u64, value: Option<u64>| {
        story.tenures.iter().filter(|holder| holder.token == Some(token)).any(|holder| {
            let resolves = story.forces(holder).filter(|op| op.fun == Fun::ForceResolve);
            let own = holder.of(story, Fun::Complete).filter(|op| !op.tombstone);
            let all: Vec<&Op> = resolves.chain(own).filter(|op| op.value == value).collect();
            let refused = |op: &&Op| match op.fun {
                Fun::Complete => op.said(Said::Lost),
                _ => !op.is_info() && !op.said(Said::Done),
            };
            let repeated = all.iter().copied().find(|op| refused(op) && op.twice);
            all.iter().any(|op| !refused(op))
                || repeated.is_some_and(|op| story.excuse(Excuse::Repeated, op, true))
        })
    };
    // Skip values whose token is unknown: an owner may complete although its grant was never
    // answered.
    let known = |token: u64| story.by_token(token).is_some();
    for (op, token) in replays(story).filter(|(op, token)| known(*token) && !sent(*token, op.value))
    {
        let text = format!(
            "the store returned other bytes for token {token} than its owner completed with"
        );
        found.push(wrong("S7", op.invoke, text, op.lines));
    }
    for call in story.calls.iter().filter(|call| call.said == Some(Said::Replayed)) {
        let Some((scope, key, token)) = &call.bears else { continue };
        if story.is_named(scope, key) && known(*token) && !sent(*token, call.value) {
            let text = format!(
                "the engine replayed bytes that the owner of token {token} did not complete with"
            );
            found.push(wrong("S7", call.invoke, text, call.lines));
        }
    }
}

/// S8 is violated if an action began in a call that was sent after a completion, within its ttl,
/// and was not granted anything. S6 judges an action whose call was granted the lease.
pub fn s8(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    for act in &story.acts {
        let own = story.ops.iter().filter(|op| op.actor == act.actor && op.call == Some(act.call));
        let mut acquires = own.filter(|op| op.fun == Fun::Acquire).peekable();
        let asked = acquires.peek().copied();
        if acquires.any(Op::is_grant) {
            continue;
        }
        let Some(asked) = asked else { continue };
        for holder in &story.tenures {
            let Some(done) = holder.completed(story) else { continue };
            if asked.invoke > done.by
                && done.stands(story, act.start)
                && !story.may_be_forced(holder, &FORGET, act.start, asked)
            {
                let text =
                    "an action ran for a call that came after the completion, within its ttl";
                found.push(wrong("S8", done.by, text, [done.line, act.lines[0]]));
            }
        }
    }
}
