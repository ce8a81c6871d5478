// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joins the two events of a call, an action or a fault.

use super::{Act, Actor, Call, Fault, Line, Op, Run, Story};
use crate::event::{AT_ONCE, Event, Fun, IN_PLACE, Phase, Said};

impl Run {
    pub(super) fn story_at(&mut self, event: &Event) -> Result<usize, String> {
        let (Some(scope), Some(key)) = (&event.scope, &event.key) else {
            return Err("the event has no `scope` and `key`".into());
        };
        let name = (scope.clone(), key.clone());
        let next = self.stories.len();
        let at = *self.names.entry(name.clone()).or_insert(next);
        if at == next {
            self.stories.push(Story { scope: name.0, key: name.1, ..Story::default() });
        }
        Ok(at)
    }

    pub(super) fn story(&mut self, event: &Event) -> Result<&mut Story, String> {
        let at = self.story_at(event)?;
        Ok(&mut self.stories[at])
    }

    pub(super) fn take_op(&mut self, actor: Actor, event: Event, line: Line) -> Result<(), String> {
        if event.phase == Phase::Invoke {
            let owner = match &event.owner {
                Some(hex) => Some(
                    u128::from_str_radix(hex, 16).map_err(|_| "the `owner` is not hexadecimal")?,
                ),
                None => None,
            };
            let at = self.story_at(&event)?;
            let ns = |us: Option<u64>| us.unwrap_or(0).saturating_mul(1_000);
            let ops = &mut self.stories[at].ops;
            ops.push(Op {
                at: 0,
                actor,
                call: event.call,
                fun: event.fun,
                owner,
                invoke: event.mono_ns,
                answer: None,
                gave_up: None,
                failed: false,
                said: None,
                token: event.token,
                lease: ns(event.lease_us),
                ttl: ns(event.ttl_us),
                fp: event.fp_hash,
                value: event.value_hash,
                tombstone: event.said == Some(Said::Tombstone),
                bears: event.bears,
                stored_fp: None,
                remaining: None,
                asked: event.token.filter(|_| event.fun.is_force()),
                since: event.since_ns,
                even_if_live: event.even_if_live,
                twice: false,
                clock: (0, 0),
                in_place: event.note.as_deref() == Some(IN_PLACE),
                at_once: false,
                lines: [Some(line), None],
            });
            let place = (at, ops.len() - 1);
            return match self.open.insert((actor, event.op), place) {
                None => Ok(()),
                Some(_) => Err("an operation began twice".into()),
            };
        }
        let Some((story, at)) = self.open.remove(&(actor, event.op)) else {
            return Err("an operation ended that did not begin".into());
        };
        let op = &mut self.stories[story].ops[at];
        op.lines[1] = Some(line);
        match event.phase {
            Phase::Fail => {
                op.failed = true;
                op.said = event.said;
                op.answer = Some(event.mono_ns);
            }
            Phase::Info => op.gave_up = Some(event.mono_ns),
            Phase::Ok | Phase::Invoke => {
                op.answer = Some(event.mono_ns);
                op.at_once = event.note.as_deref() == Some(AT_ONCE);
                op.said = Some(event.said.ok_or("an answer has no `said`")?);
                op.token = event.token.or(op.token);
                op.remaining = event.remaining_us.map(|us| us.saturating_mul(1_000));
                if matches!(op.said, Some(Said::Complete | Said::Tombstone)) {
                    op.tombstone = op.said == Some(Said::Tombstone);
                    (op.value, op.bears, op.stored_fp) =
                        (event.value_hash, event.bears, event.fp_hash);
                }
            }
        }
        Ok(())
    }

    pub(super) fn take_call(
        &mut self,
        actor: Actor,
        event: Event,
        line: Line,
    ) -> Result<(), String> {
        if event.phase == Phase::Invoke {
            let at = self.story_at(&event)?;
            let calls = &mut self.stories[at].calls;
            calls.push(Call {
                actor,
                op: event.op,
                invoke: event.mono_ns,
                answer: None,
                answers: 0,
                said: None,
                fp: event.fp_hash,
                wait: event.wait_us.unwrap_or(0).saturating_mul(1_000),
                recorded: None,
                fenced: false,
                propagate: event.propagate,
                value: None,
                bears: None,
                hooked: false,
                note: event.note,
                lines: [Some(line), None],
            });
            let place = (at, calls.len() - 1);
            return match self.open_calls.insert((actor, event.op), place) {
                None => Ok(()),
                Some(_) => Err("a call began twice".into()),
            };
        }
        // Keep the call open, because S10 judges a second answer.
        let Some(&(story, at)) = self.open_calls.get(&(actor, event.op)) else {
            return Err("a call was answered that did not begin".into());
        };
        let call = &mut self.stories[story].calls[at];
        call.answers += 1;
        if call.answer.is_none() {
            call.answer = Some(event.mono_ns);
            call.said = Some(event.said.ok_or("an answer has no `said`")?);
            call.recorded = event.recorded;
            call.fenced = event.fenced;
            call.value = event.value_hash;
            call.bears = event.bears;
            call.note = event.note.or(call.note.take());
        }
        call.lines[1] = Some(line);
        Ok(())
    }

    pub(super) fn take_act(
        &mut self,
        actor: Actor,
        event: Event,
        line: Line,
    ) -> Result<(), String> {
        let call = event.call.ok_or("the event has no `call`")?;
        let token = event.token.ok_or("the event has no `token`")?;
        let (fun, at, said, note) = (event.fun, event.mono_ns, event.said, event.note.clone());
        let acts = &mut self.story(&event)?.acts;
        if fun == Fun::ActStart {
            acts.push(Act {
                actor,
                call,
                token,
                start: at,
                end: None,
                note,
                lines: [Some(line), None],
            });
            return Ok(());
        }
        let is_it = |act: &&mut Act| act.actor == actor && act.call == call && act.end.is_none();
        let act = acts.iter_mut().rev().find(is_it).ok_or("an action ended that did not begin")?;
        act.end = Some((at, said.ok_or("an end has no `said`")?));
        act.note = note;
        act.lines[1] = Some(line);
        Ok(())
    }

    pub(super) fn take_fault(&mut self, event: Event) -> Result<(), String> {
        let name = event.note.ok_or("a fault has no name")?;
        if event.phase == Phase::Invoke {
            self.open_faults.insert(event.op, self.faults.len());
            let (from, to, lossy) = (event.mono_ns, None, event.lossy);
            let victim = event.victim;
            let moved_ns = event.moved_us.unwrap_or(0).saturating_mul(1_000);
            self.faults.push(Fault { name, from, to, victim, lossy, real: None, moved_ns });
        } else if let Some(at) = self.open_faults.remove(&event.op) {
            self.faults[at].to = Some(event.mono_ns);
            self.faults[at].real = event.since_ns.zip(event.until_ns);
        } else {
            return Err("a fault ended that did not begin".into());
        }
        Ok(())
    }
}
