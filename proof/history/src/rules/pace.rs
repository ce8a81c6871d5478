// SPDX-License-Identifier: MIT OR Apache-2.0
//! How soon waits end: the strict bounds of L1, L2 and L3, over all waits of a run together.
//!
//! On a shared machine, any single wait may end late, so a bound for single waits needs seconds of
//! slack. With that slack, even a store that wakes no waiter keeps the bound, because each wait
//! ends with its lease or its time limit. But even a shared machine does not delay a tenth of all
//! waits. Therefore a wait counts as late here if it lasts longer than the longest pause between
//! two reads of its store, and a run breaks the rule if more than a tenth of its waits are late.
//! The time in which the process did not run or waited for the store's answers does not count.
//!
//! Half of the notified waits have a stricter bound, and three quarters have one and a half times
//! that bound. A notification takes the same way as an answer of the store, through the server and
//! the waiter's process, and a busy machine delays both alike. Therefore this bound includes the
//! median time of an answer in the same run. The second bound is for such a machine: there, the
//! time of the waiter's own store calls, which does not count, can hide that half of the waiters
//! were not woken.

use super::live::woken;
use super::{ms, wrong};
use crate::event::{Fun, Said};
use crate::excuse::Excuse;
use crate::judge::Violation;
use crate::rules::live::latest_end;
use crate::story::{Actor, Call, Line, Op, Run, Story, Tenure};
use crate::when::MS;

/// How late a timer may be in a process that runs.
const TIMER_NS: u64 = 10 * MS;

/// The shares of the notified waits that are judged: the name of the waits that may be late, how
/// many hundredths of the waits must be in time, and the bound in hundredths of the run's.
const NOTIFIED: [(&str, usize, u64); 2] = [("half", 50, 100), ("a quarter", 75, 150)];

/// These shares are judged only if there are at least this many waits.
pub const MEDIAN_OF: usize = 10;

/// One wait, and how late it ended.
#[derive(Debug, Clone)]
pub struct Wait {
    /// The rule that bounds the wait.
    pub rule: &'static str,
    /// The number of the story that contains the wait.
    pub story: usize,
    /// When the wait should have ended.
    pub due: u64,
    /// How much later than that the wait ended, in nanoseconds.
    pub late: u64,
    /// Whether the change that ended the wait happened in the waiter's process.
    pub same: bool,
    /// What shows it.
    pub lines: [Option<Line>; 2],
}

/// The waits of a run, and how many others a fault disturbed.
#[derive(Debug, Clone, Default)]
pub struct Waits {
    /// The waits that are judged.
    pub judged: Vec<Wait>,
    /// How many waits are excused.
    pub excused: u64,
}

/// A wait whose end is due.
struct Due<'s> {
    rule: &'static str,
    story: usize,
    of: &'s Story,
    /// The call that shows the end of the wait.
    op: &'s Op,
    /// The process that waits.
    waiter: Actor,
    /// The process that makes the change that ends the wait, if a living process does.
    maker: Option<Actor>,
    /// When the wait began: a fault after this may disturb it.
    since: u64,
    due: u64,
    end: u64,
    lines: [Option<Line>; 2],
}

impl Waits {
    /// Collects the waits of all stories.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let mut waits = Self::default();
        for (at, story) in run.stories.iter().enumerate() {
            for call in &story.calls {
                waits.bounded(run, (at, story), call);
            }
            for found in woken(run, story) {
                let call = &story.calls[found.call];
                let due = Due {
                    rule: "L2",
                    story: at,
                    of: story,
                    op: found.done,
                    waiter: call.actor,
                    maker: Some(found.done.actor),
                    since: call.invoke,
                    due: found.done.end(),
                    end: call.answer.unwrap_or(0),
                    lines: [found.done.lines[1], call.lines[1]],
                };
                waits.take(run, &due, found.done.actor == call.actor);
            }
            // If tokens fell, their order is not that of the grants.
            if !story.rewound {
                waits.granted(run, at, story);
            }
        }
        waits
    }

    /// L1: a call that waited in vain ends when its time to wait is over.
    fn bounded(&mut self, run: &Run, (at, story): (usize, &Story), call: &Call) {
        let waited = call.said == Some(Said::InFlight) && call.wait > 0 && !call.fenced;
        let Some(end) = call.answer.filter(|_| waited) else { return };
        // Count only the store calls of this call, because those of other calls in the same process
        // run beside its wait.
        let asked = within(own(story, call), call.invoke, end);
        let Some(op) = own(story, call).next() else { return };
        let due = Due {
            rule: "L1",
            story: at,
            of: story,
            op,
            waiter: call.actor,
            maker: None,
            since: call.invoke,
            due: call.invoke,
            end,
            lines: call.lines,
        };
        self.add(run, &due, call.wait + asked, true);
    }

    /// L3: a caller that waits takes over when the lease ends, and is granted a key that its holder
    /// has released.
    fn granted(&mut self, run: &Run, at: usize, story: &Story) {
        let known: Vec<&Tenure> = story.known().map(|(tenure, _)| tenure).collect();
        for pair in known.windows(2) {
            let (holder, taker) = (pair[0], pair[1]);
            let Some(grant) = taker.grants(story).next() else { continue };
            let end = grant.end();
            let released = holder.of(story, Fun::Release).find(|op| op.said(Said::Done));
            let (due, before, maker) = match released {
                Some(op) if grant.said(Said::Granted) => (op.end(), op.invoke, Some(op.actor)),
                None if grant.said(Said::TookOver) => {
                    let over = latest_end(story, holder, end);
                    (over, over, None)
                }
                _ => continue,
            };
            let moved = holder.grants(story).any(|op| story.clock.is_moved(op.invoke, end));
            let moved = story.excuse(Excuse::Struck, grant, moved);
            if moved || story.strangers(&[holder.owner, taker.owner], grant) {
                continue;
            }
            let Some(asked) = refused_before(story, grant, before) else { continue };
            let since = asked.invoke;
            let lines = [released.and_then(|op| op.lines[1]), grant.lines[1]];
            let waiter = grant.actor;
            let due = Due {
                rule: "L3",
                story: at,
                of: story,
                op: grant,
                waiter,
                maker,
                since,
                due,
                end,
                lines,
            };
            self.take(run, &due, maker == Some(waiter));
        }
    }

    /// Adds a wait. The time of all store calls of the waiting process is subtracted, because the
    /// waiters of a process share one wait.
    fn take(&mut self, run: &Run, due: &Due<'_>, same: bool) {
        let ops = due.of.ops.iter().filter(|op| op.actor == due.waiter);
        let asked = within(ops, due.due, due.end);
        self.add(run, due, asked, same);
    }

    fn add(&mut self, run: &Run, due: &Due<'_>, granted: u64, same: bool) {
        if due.of.excuse(Excuse::Struck, due.op, disturbed(run, due)) {
            self.excused += 1;
            return;
        }
        let took = due.end.saturating_sub(due.due);
        let lag = run.lag(due.waiter, due.due.min(due.end), due.end);
        due.of.excuse(Excuse::Lag, due.op, lag > 0);
        let late = took.saturating_sub(granted).saturating_sub(lag);
        let Due { rule, story, due, lines, .. } = *due;
        self.judged.push(Wait { rule, story, due, late, same, lines });
    }

    /// Returns the waits that a notification should end: those for a change in the waiter's own
    /// process, or those for a change in another process, of which not every store notifies.
    #[must_use]
    pub fn notified(&self, run: &Run, same: bool) -> Vec<&Wait> {
        let notifies = same || run.manifest.pushes;
        let of = |wait: &&Wait| notifies && wait.rule == "L2" && wait.same == same;
        self.judged.iter().filter(of).collect()
    }

    /// Checks the waits against the bounds.
    pub(crate) fn judge(&self, run: &Run, found: &mut Vec<Violation>) {
        let bound = run.poll() + TIMER_NS;
        // A tenth of the waits may be late. On a shared machine, two more may be late, because a
        // short run has only a few waits, and a tenth of them may be none.
        let spared = if run.slack() >= 1_000 * MS { 2 } else { 0 };
        for rule in ["L1", "L2", "L3"] {
            let all: Vec<&Wait> = self.judged.iter().filter(|wait| wait.rule == rule).collect();
            let mut late: Vec<&&Wait> = all.iter().filter(|wait| wait.late > bound).collect();
            if late.len() > all.len() / 10 + spared {
                late.sort_by_key(|wait| wait.late);
                let worst = late[late.len() - 1];
                let text = format!(
                    "{} of {} undisturbed waits ended more than {} late; the latest by {}",
                    late.len(),
                    all.len(),
                    ms(bound),
                    ms(worst.late)
                );
                found.push(whole(worst, text));
            }
        }
        // Judge each kind separately: wake-ups within a process are so fast that they would hide
        // that no wake-up reaches another process.
        let bound = run.wake() + run.usual_answer();
        for same in [true, false] {
            let mut woken = self.notified(run, same);
            woken.sort_by_key(|wait| wait.late);
            if woken.len() < MEDIAN_OF {
                continue;
            }
            for (part, percent, of_bound) in NOTIFIED {
                let wait = woken[(woken.len() - 1) * percent / 100];
                let bound = bound * of_bound / 100;
                if wait.late > bound {
                    let text = format!(
                        "{part} of {} waiters that a notification should wake had the result {} or \
                         later after its completion; the bound is {}",
                        woken.len(),
                        ms(wait.late),
                        ms(bound)
                    );
                    found.push(whole(wait, text));
                    break;
                }
            }
        }
    }
}

fn whole(wait: &Wait, text: String) -> Violation {
    Violation { story: Some(wait.story), ..wrong(wait.rule, wait.due, text, wait.lines) }
}

fn own<'s>(story: &'s Story, call: &Call) -> impl Iterator<Item = &'s Op> {
    let (actor, op) = (call.actor, call.op);
    story.ops.iter().filter(move |other| other.actor == actor && other.call == Some(op))
}

/// Returns the last acquire before this instant that was refused in the same call as `grant`.
fn refused_before<'s>(story: &'s Story, grant: &Op, before: u64) -> Option<&'s Op> {
    let call = grant.call?;
    story.ops.iter().rfind(|op| {
        op.actor == grant.actor && op.call == Some(call) && op.said(Said::Busy) && op.end() < before
    })
}

/// Returns for how long, between `from` and `to`, at least one of these store calls was under way.
/// A call that waits for a change does not count.
fn within<'s>(ops: impl Iterator<Item = &'s Op>, from: u64, to: u64) -> u64 {
    let ends = |op: &Op| op.answer.or(op.gave_up).unwrap_or(to).min(to);
    let mut spans: Vec<(u64, u64)> = ops
        .filter(|op| op.fun != Fun::Wait && op.invoke < to && ends(op) > from)
        .map(|op| (op.invoke.max(from), ends(op)))
        .collect();
    spans.sort_unstable();
    let mut reached = from;
    let mut sum = 0;
    for (begin, end) in spans {
        sum += end.saturating_sub(begin.max(reached));
        reached = reached.max(end);
    }
    sum
}

/// Returns whether a fault may have delayed the wait: a fault of the store or the network, one of
/// the process that made the change, or a failed store call of the waiting process.
fn disturbed(run: &Run, due: &Due<'_>) -> bool {
    let maker = due.maker.map(|maker| maker.proc);
    let struck = run.faulty(due.since, due.end, |fault| {
        let hit = fault.victim.is_none_or(|victim| Some(victim) == maker);
        let harmless = ["clock", "leap", "jump", "slots"].contains(&fault.name.as_str());
        !harmless && (hit || fault.cuts(due.waiter.proc))
    });
    // A waiter subscribes again at the slot's new node, and polls meanwhile.
    struck
        || due.of.moves.iter().any(|one| one.meets(due.since, due.end))
        || due.of.ops.iter().any(|op| {
            op.actor == due.waiter
                && (op.failed || op.is_info())
                && op.invoke <= due.end
                && op.answer.or(op.gave_up).is_none_or(|end| end >= due.since)
        })
}
