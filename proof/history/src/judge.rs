// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`judge`]: applies every rule to every story.

use crate::count::{Count, Counts};
use crate::event::Fun;
use crate::excuse::{Excuse, Share};
use crate::rules::pace::Waits;
use crate::rules::{self, order};
use crate::story::{Line, Op, Run, Story};

/// A violation of a rule.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The invariant.
    pub rule: &'static str,
    /// The number of the story that breaks the rule.
    pub story: Option<usize>,
    /// What is wrong.
    pub text: String,
    /// The events that show the violation.
    pub lines: Vec<Line>,
    /// When the violation became visible.
    pub at: u64,
    /// Whether the violation is a loss that the store's documentation says is possible.
    pub documented: bool,
}

/// The judgement of a run.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// All violations, in the order of rules and stories.
    pub violations: Vec<Violation>,
    /// Violations that come from a fault which is documented to lose acknowledged writes.
    pub losses: Vec<Violation>,
    /// How often each kind of event happened.
    pub counts: Counts,
    /// What each excuse covered.
    pub shares: Vec<Share>,
    /// Stories whose search for a valid order was given up (S18).
    pub unsearched: u64,
    /// For each outage of the server: the longest time without an answer of the store, in
    /// nanoseconds. The times are sorted.
    pub pauses: Vec<u64>,
}

/// The invariants that a failover without synchronous copies relaxes inside its window, and those
/// that depend on them.
const RELAXED: [&str; 12] =
    ["S1", "S2", "S3", "S4", "S5", "S6", "S9", "S14", "S17", "S18", "OPS-3", "OPS-4"];

/// The rules that take the order of the grants from their tokens.
const BY_TOKEN: [&str; 9] = ["S1", "S2", "S3", "S5", "S9", "S13", "S17", "L3", "OPS-3"];

impl Judgement {
    /// Returns the counts that are too low for a valid run.
    #[must_use]
    pub fn missing(&self) -> Vec<Count> {
        self.counts.list().into_iter().filter(|count| count.have < count.least).collect()
    }

    /// Returns the excuses that covered so much that the run says too little.
    #[must_use]
    pub fn too_much(&self) -> Vec<Share> {
        self.shares.iter().copied().filter(Share::is_too_large).collect()
    }

    /// Returns whether no rule was violated, the run had enough calls and faults, and not too much
    /// was excused.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.violations.is_empty() && self.missing().is_empty() && self.too_much().is_empty()
    }
}

/// Judges a run.
#[must_use]
pub fn judge(run: &Run) -> Judgement {
    let mut found = Vec::new();
    let mut unsearched = 0;
    for (at, story) in run.stories.iter().enumerate() {
        let from = found.len();
        lossy(run, story);
        if story.rewound
            && let Some(first) = story.ops.first()
        {
            story.excuse(Excuse::FallenToken, first, true);
        }
        for (id, _, rule) in rules::RULES {
            if !(story.rewound && BY_TOKEN.contains(&id)) {
                rule(run, story, &mut found);
            }
        }
        // If the rules found no violation, search for a valid order of the calls too.
        if found.len() == from {
            match order::s18(run, story, &mut found) {
                order::Search::Ended => {}
                order::Search::GivenUp => {
                    unsearched += 1;
                    for op in &story.ops {
                        story.excuse(Excuse::GivenUp, op, op.fun != Fun::Wait);
                    }
                }
            }
        }
        for violation in &mut found[from..] {
            violation.story = Some(at);
        }
    }
    let waits = Waits::of(run);
    waits.judge(run, &mut found);
    found.sort_by_key(|violation| (rules::place(violation.rule), violation.at));
    let (losses, violations) = found.into_iter().partition(|violation| {
        violation.documented
            || RELAXED.contains(&violation.rule)
                && (run.faulty(violation.at, violation.at, |fault| fault.lossy && !fault.is_loss())
                    || is_explained(run, violation)
                    || interrupted(run, violation))
    });
    let (mut counts, shares) = (Counts::of(run), Share::all(run));
    counts.undisturbed = [true, false].map(|same| waits.notified(run, same).len() as u64);
    let pauses = crate::pause::pauses(run);
    Judgement { violations, losses, counts, shares, unsearched, pauses }
}

/// Returns whether the violation follows from acknowledged writes that a failover lost: no
/// violation of the rule is left if the calls that the failover may have undone had got no answer.
/// If the story also lost an older write, the violation stays.
fn is_explained(run: &Run, violation: &Violation) -> bool {
    let story = violation.story.and_then(|at| run.stories.get(at));
    let Some(rest) = story.and_then(|story| run.without_losses(story)) else { return false };
    let mut found = Vec::new();
    match rules::RULES.iter().find(|(id, ..)| *id == violation.rule) {
        Some((_, _, rule)) => rule(run, &rest, &mut found),
        None => drop(order::s18(run, &rest, &mut found)),
    }
    found.is_empty()
}

/// Returns whether a failover interrupted a move of the identity's slot between the call whose
/// promise was broken and the last call that shows it. Such a failover loses records of any age.
fn interrupted(run: &Run, violation: &Violation) -> bool {
    let Some(story) = violation.story.and_then(|at| run.stories.get(at)) else { return false };
    let shows = |op: &&Op| op.lines.iter().flatten().any(|line| violation.lines.contains(line));
    let last = story.ops.iter().filter(shows).map(|op| op.answer.unwrap_or(op.invoke)).max();
    let last = last.unwrap_or(violation.at);
    story.moves.iter().any(|one| one.lossy && one.meets(violation.at, last))
}

/// Notes the calls that are excused by a failover that loses writes.
fn lossy(run: &Run, story: &Story) {
    for op in &story.ops {
        let end = op.answer.or(op.gave_up).unwrap_or(u64::MAX);
        let lost = run.faulty(op.invoke, end, |fault| fault.lossy)
            || story.moves.iter().any(|one| one.lossy && one.meets(op.invoke, end));
        story.excuse(Excuse::FailOver, op, lost && op.fun != Fun::Wait);
    }
}
