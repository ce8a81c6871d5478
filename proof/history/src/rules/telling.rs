// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a holder is notified of: S19.

use super::calls::completions;
use super::wrong;
use crate::event::{Fun, Said};
use crate::excuse::Excuse;
use crate::judge::Violation;
use crate::story::{Op, Run, Story};

/// S19: a refused completion is reported, and no other completion is reported as refused: observers
/// are notified of a lost lease, the hook gets the value, and the caller is answered like a
/// duplicate. If no record is left, the completion failed: the caller learns that, or gets its own
/// value, and then the hook does not get it (CMP-4). Each lease has one terminal event.
pub fn s19(run: &Run, story: &Story, found: &mut Vec<Violation>) {
    for act in &story.acts {
        let Some(refused) = completions(story, act.token).find(|op| op.said(Said::Lost)) else {
            continue;
        };
        let own = |call: &&crate::story::Call| call.actor == act.actor && call.op == act.call;
        let Some(call) = story.calls.iter().find(own) else { continue };
        // Skip a call that was answered before the refusal: the time for its completion had passed,
        // so the completion policy decided the answer, and the completion was repeated in the
        // background.
        let late = call.answer.is_none_or(|answer| answer < refused.end());
        if story.excuse(Excuse::LateAnswer, refused, late) {
            continue;
        }
        let mut say = |text: &str| {
            let lines = refused.lines.into_iter().chain(call.lines);
            found.push(wrong("S19", refused.invoke, text, lines));
        };
        let told =
            story.told.iter().any(|told| told.said == Said::LeaseLost && told.token == act.token);
        if !told {
            say("a completion was refused, but no observer was notified of a lost lease");
        }
        match call.said {
            Some(Said::Executed) if call.hooked => {
                say("the hook for refused completions and the caller both got the value")
            }
            Some(Said::Executed) if call.propagate || !saw_no_record(story, act.call, refused) => {
                say("a completion was refused, but its caller was answered that the action was \
                 executed")
            }
            Some(
                Said::Replayed
                | Said::InFlight
                | Said::Mismatch
                | Said::NotReplayable
                | Said::CompletionError,
            ) if !call.hooked => {
                say("a completion was refused, but the hook did not get its value");
            }
            _ => {}
        }
    }
    for told in story.told.iter().filter(|told| told.said == Said::LeaseLost) {
        if !completions(story, told.token).any(|op| op.said(Said::Lost)) {
            let text = "an observer was notified of a refused completion, but none was refused";
            found.push(wrong("S19", told.at, text, [Some(told.line)]));
        }
    }
    for granted in story.told.iter().filter(|told| told.said == Said::Granted) {
        let terminal =
            |said: Said| matches!(said, Said::Completed | Said::Failed | Said::LeaseLost);
        let ends = story
            .told
            .iter()
            .filter(|told| {
                told.actor == granted.actor && told.token == granted.token && terminal(told.said)
            })
            .count();
        let died = run.ended(granted.actor).is_none();
        let grant = story.by_token(granted.token).and_then(|holder| holder.grants(story).next());
        let killed = ends == 0
            && died
            && grant.is_none_or(|grant| story.excuse(Excuse::Killed, grant, true));
        if ends > 1 || (ends == 0 && !killed) {
            let text = format!("the lease of token {} has {ends} terminal events", granted.token);
            found.push(wrong("S19", granted.at, text, [Some(granted.line)]));
        }
    }
}

/// Returns whether the call, after its completion was refused, saw no record, or nothing.
fn saw_no_record(story: &Story, call: u64, refused: &Op) -> bool {
    let own = |op: &&Op| op.fun == Fun::Look && op.actor == refused.actor && op.call == Some(call);
    let looks = story.ops.iter().filter(own).filter(|op| op.invoke >= refused.end());
    let last = looks.filter(|op| op.said.is_some()).max_by_key(|op| op.end());
    last.is_none_or(|look| look.said(Said::Absent))
}
