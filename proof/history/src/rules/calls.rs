// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answers that a caller gets: S10, S11, S15, S16.

use super::wrong;
use crate::event::{Fun, Said};
use crate::excuse::Excuse;
use crate::judge::Violation;
use crate::story::{Act, Call, Op, Run, Story};

pub(super) fn acts<'s>(story: &'s Story, call: &Call) -> Vec<&'s Act> {
    story.acts.iter().filter(|act| act.actor == call.actor && act.call == call.op).collect()
}

/// Returns the completions that the owner of a token sent.
pub(super) fn completions(story: &Story, token: u64) -> impl Iterator<Item = &Op> {
    let of = story.tenures.iter().filter(move |tenure| tenure.token == Some(token));
    of.flat_map(|tenure| tenure.of(story, Fun::Complete))
}

fn confirmed(story: &Story, token: u64) -> impl Iterator<Item = &Op> {
    completions(story, token).filter(|op| op.said(Said::Done) || op.said(Said::AlreadyDone))
}

/// S10: each call has one answer, which says correctly whether the action ran in the call and
/// whether its result was recorded.
pub fn s10(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    for call in &story.calls {
        let mut say = |text: String| found.push(wrong("S10", call.invoke, text, call.lines));
        if call.answers > 1 {
            say(format!("a call was answered {} times", call.answers));
        }
        let (Some(said), ran) = (call.said, acts(story, call)) else { continue };
        if ran.len() > 1 {
            say(format!("the action ran {} times in one call", ran.len()));
            continue;
        }
        let end = ran.first().map(|act| act.end.map(|(_, end)| end));
        let should = match said {
            Said::Executed => Some(Said::Returned),
            Said::ActionError => Some(Said::Err),
            Said::Panicked => Some(Said::Panic),
            Said::CompletionError => Some(Said::Returned),
            Said::Replayed | Said::InFlight | Said::NotReplayable if call.fenced => {
                Some(Said::Returned)
            }
            Said::Replayed | Said::InFlight | Said::NotReplayable | Said::StoreError => None,
            // S11 judges a mismatch. In the other cases, the caller managed the lease itself or
            // gave up.
            _ => continue,
        };
        if end.flatten() != should {
            say(format!("the call was answered {said:?}, but the action {}", end_of(end)));
        }
        let Some(act) = ran.first() else { continue };
        let tombstone = match call.recorded.as_deref() {
            Some("yes") if said == Said::Executed => false,
            Some("tombstone") if said == Said::Executed => true,
            _ => continue,
        };
        if !confirmed(story, act.token).any(|op| op.tombstone == tombstone) {
            say("the call reports that its result is recorded, but no completion of its owner \
                was confirmed"
                .into());
        }
    }
}

fn end_of(end: Option<Option<Said>>) -> String {
    match end {
        None => "did not run in this call".into(),
        Some(None) => "had not ended".into(),
        Some(Some(end)) => format!("ended as {end:?}"),
    }
}

/// S11: a call that was answered with a mismatch ran nothing, and its fingerprint differed from the
/// stored one. A call that got a replay had the stored fingerprint.
pub fn s11(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for call in &story.calls {
        let mut say = |text: &str| found.push(wrong("S11", call.invoke, text, call.lines));
        match call.said {
            Some(Said::Mismatch) => {
                if !call.fenced && !acts(story, call).is_empty() {
                    say("the call was refused because of its fingerprint, but its action ran");
                }
                let stored = story.ops.iter().filter_map(|op| op.stored_fp);
                let holders =
                    story.ops.iter().filter(|op| op.fun == Fun::Acquire).filter_map(|op| op.fp);
                let differs =
                    call.fp.is_some_and(|own| stored.chain(holders).any(|other| other != own));
                if !differs {
                    say("the call was refused because of its fingerprint, but no caller sent \
                         another one");
                }
            }
            Some(Said::Replayed) => {
                let holder = call.bears.as_ref().and_then(|(_, _, token)| story.by_token(*token));
                let stored =
                    holder.and_then(|tenure| tenure.of(story, Fun::Acquire).find_map(|op| op.fp));
                // In the memory store, a record that an operator resolved has no fingerprint,
                // because the store does not keep the fingerprint of a lease (OPS-4).
                let resolve = story.ops.iter().find(|op| op.fun == Fun::ForceResolve);
                let resolve = resolve.filter(|_| run.manifest.store == "memory");
                if let (Some(own), Some(stored)) = (call.fp, stored)
                    && own != stored
                    && !resolve.is_some_and(|op| story.excuse(Excuse::NoFingerprint, op, true))
                {
                    say("the call got a replay, although the fingerprints differ");
                }
            }
            _ => {}
        }
    }
}

/// S15: an answer that reports the result as recorded comes after the recording. With `propagate`,
/// no caller gets a success before that.
pub fn s15(_: &Run, story: &Story, found: &mut Vec<Violation>) {
    for call in story.calls.iter().filter(|call| call.said == Some(Said::Executed)) {
        let (Some(answer), Some(act)) = (call.answer, acts(story, call).first().copied()) else {
            continue;
        };
        let recorded = matches!(call.recorded.as_deref(), Some("yes" | "tombstone"));
        let mut done = confirmed(story, act.token).peekable();
        // `late` needs a confirmed completion, because S10 judges calls without one.
        let late = done.peek().is_some() && done.all(|op| op.end() > answer);
        if recorded && late {
            found.push(wrong(
                "S15",
                call.invoke,
                "the call was answered before its completion was acknowledged",
                call.lines,
            ));
        } else if call.propagate && !recorded {
            found.push(wrong(
                "S15",
                call.invoke,
                "the call succeeded without a record, although its policy is `propagate`",
                call.lines,
            ));
        }
    }
}

/// S16: an action that did not return a value is never completed. If it failed, the key is released
/// and the error is returned unchanged; if it was dropped or held on purpose, the key is not
/// released.
pub fn s16(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for act in &story.acts {
        let Some((_, end)) = act.end.filter(|(_, end)| *end != Said::Returned) else { continue };
        let mut say = |text: String, op: Option<&Op>| {
            let lines = act.lines.into_iter().chain(op.map_or([None; 2], |op| op.lines));
            found.push(wrong("S16", act.start, text, lines));
        };
        if let Some(op) =
            completions(story, act.token).find(|op| !op.failed && !op.said(Said::Lost))
        {
            say(format!("an action that ended as {end:?} was completed"), Some(op));
        }
        let release =
            story.by_token(act.token).and_then(|tenure| tenure.of(story, Fun::Release).next());
        let call = story.calls.iter().find(|call| call.actor == act.actor && call.op == act.call);
        let answered = call.filter(|call| call.answer.is_some());
        // A caller that dropped its call does not wait for the release, which follows in the
        // background. A kill may prevent it, so the release is certain only if the process ended by
        // itself.
        let killed = |call: &Call| {
            let grant = story.by_token(act.token).and_then(|holder| holder.grants(story).next());
            let died = call.said == Some(Said::Dropped) && run.ended(call.actor).is_none();
            died && grant.is_none_or(|grant| story.excuse(Excuse::Killed, grant, true))
        };
        match (end, release) {
            (Said::Err | Said::Panic, None) if answered.is_some_and(|call| !killed(call)) => {
                say(format!("an action that ended as {end:?} was not released"), None);
            }
            (Said::Dropped | Said::Hold, Some(release)) => {
                say(format!("an action that ended as {end:?} was released"), Some(release));
            }
            _ => {}
        }
        let changed =
            answered.filter(|call| call.said == Some(Said::ActionError) && call.note != act.note);
        if end == Said::Err && changed.is_some() {
            say("the call returned another error than the action".into(), None);
        }
    }
}
