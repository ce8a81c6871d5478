// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Tenure`]: all store calls of one owner, and what is certain about them.

use std::collections::HashMap;

use super::{Line, Op, Story};
use crate::event::{Fun, Said};
use crate::excuse::Excuse;
use crate::when::slop;

/// The store calls of one owner.
#[derive(Debug, Clone)]
pub struct Tenure {
    /// The owner.
    pub owner: u128,
    /// The owner's token, if its grant was answered.
    pub token: Option<u64>,
    /// The owner's store calls, by their numbers in the story, in the order in which they were
    /// sent.
    pub ops: Vec<usize>,
}

/// Returns the owners of a story: first those with a known grant, in the order of their tokens, and
/// then the others.
pub(super) fn tenures(ops: &[Op]) -> Vec<Tenure> {
    let mut found: Vec<Tenure> = Vec::new();
    let mut of: HashMap<u128, usize> = HashMap::new();
    for (at, op) in ops.iter().enumerate() {
        let Some(owner) = op.owner else { continue };
        let tenure = *of.entry(owner).or_insert_with(|| {
            found.push(Tenure { owner, token: None, ops: Vec::new() });
            found.len() - 1
        });
        found[tenure].ops.push(at);
        if op.is_grant() && found[tenure].token.is_none() {
            found[tenure].token = op.token;
        }
    }
    found.sort_by_key(|tenure| tenure.token.unwrap_or(u64::MAX));
    found
}

/// When a completion took effect, as far as this is known.
#[derive(Debug, Clone, Copy)]
pub struct Completed {
    /// The earliest time at which the completion may have taken effect.
    pub from: u64,
    /// The latest time at which the completion may have taken effect: by then, it was answered or a
    /// caller got its value.
    pub by: u64,
    /// The ttl of the result.
    pub ttl: u64,
    /// The earliest time at which the result's ttl may end, by the store's clock.
    pub until: u64,
    /// Whether the completion was acknowledged to its caller; otherwise, only other callers got the
    /// value.
    pub acknowledged: bool,
    /// What shows it.
    pub line: Option<Line>,
}

impl Completed {
    /// Returns whether the result's ttl certainly runs at each instant up to `by`.
    #[must_use]
    pub fn stands(&self, story: &Story, by: u64) -> bool {
        story.clock.latest(self.from, by) + slop(self.ttl) < self.until
    }
}

impl Tenure {
    /// Returns the owner's calls of one kind.
    pub fn of<'s>(&'s self, story: &'s Story, fun: Fun) -> impl Iterator<Item = &'s Op> {
        self.ops.iter().map(|at| &story.ops[*at]).filter(move |op| op.fun == fun)
    }

    /// Returns the owner's acquires that were granted.
    pub fn grants<'s>(&'s self, story: &'s Story) -> impl Iterator<Item = &'s Op> {
        self.of(story, Fun::Acquire).filter(|op| op.is_grant())
    }

    /// Returns the owner's acquires that may have been granted a lease without an answer that shows
    /// this grant. The answer to a call that was sent twice shows what the first sending got,
    /// unless that lease was over by then.
    pub fn maybe_grants<'s>(&'s self, story: &'s Story) -> impl Iterator<Item = &'s Op> {
        self.of(story, Fun::Acquire).filter(|op| {
            op.is_info()
                || op.twice && (story.may_outlast_its_lease(op) || story.is_forced_beside(op))
        })
    }

    /// Returns whether one of the owner's acquires that got no answer may have arrived late, but
    /// before the call `judged` was answered, and may have given the owner the lease again.
    pub fn may_have_asked(&self, story: &Story, judged: &Op) -> bool {
        let mut asked = self.of(story, Fun::Acquire);
        let late = asked.any(|op| op.is_info() && op.invoke <= judged.end());
        story.excuse(Excuse::LateAcquire, judged, late)
    }

    /// Returns the owner's calls that certainly gave it a lease or extended its lease.
    pub fn leases<'s>(&'s self, story: &'s Story) -> impl Iterator<Item = &'s Op> {
        self.ops
            .iter()
            .map(|at| &story.ops[*at])
            .filter(|op| op.is_grant() || (op.fun == Fun::Extend && op.said(Said::Done)))
    }

    /// Returns the owner's calls that may have set the end of its lease after `last` did: those
    /// under way at the same time, and, if the clock was set back, all later ones up to `by`,
    /// because such a call may then shorten the lease.
    pub fn resets<'s>(
        &'s self,
        story: &'s Story,
        last: &'s Op,
        by: u64,
    ) -> impl Iterator<Item = &'s Op> {
        let until = if story.clock.is_set_back(last.invoke, by) { by } else { last.end() };
        self.ops.iter().map(|at| &story.ops[*at]).filter(move |op| {
            matches!(op.fun, Fun::Acquire | Fun::Extend)
                && !op.failed
                && (op.twice || !op.said(Said::Lost))
                && op.end() >= last.invoke
                && op.invoke <= until
        })
    }

    /// Returns whether the owner's lease may have been ended before the call `judged` was answered:
    /// by the owner's release or completion, or by an operator.
    pub fn may_have_ended(&self, story: &Story, judged: &Op) -> bool {
        let verbs = [Fun::ForceRelease, Fun::ForceResolve];
        if story.may_be_forced(self, &verbs, judged.end(), judged) {
            return true;
        }
        let ends = self.of(story, Fun::Complete).chain(self.of(story, Fun::Release));
        let sent: Vec<&Op> = ends.filter(|op| op.invoke <= judged.end() && !op.failed).collect();
        let has = |is: &dyn Fn(&Op) -> bool| sent.iter().any(|op| is(op));
        has(&|op| op.answer.is_some() && !op.said(Said::Lost))
            || story.excuse(Excuse::Unanswered, judged, has(&|op| op.is_info()))
            || story.excuse(Excuse::Repeated, judged, has(&|op| op.twice))
    }

    /// Returns the owner's completion, if that certainly took effect.
    pub fn completed(&self, story: &Story) -> Option<Completed> {
        let sent: Vec<&Op> = self.of(story, Fun::Complete).filter(|op| !op.failed).collect();
        let first = sent.iter().map(|op| op.invoke).min()?;
        let begins = sent.iter().map(|op| op.clock.0).min()?;
        let ttl = sent.iter().map(|op| op.ttl).min()?;
        let answered = sent
            .iter()
            .filter(|op| op.said(Said::Done) || op.said(Said::AlreadyDone))
            .filter_map(|op| Some((op.answer?, op.lines[1])));
        let shown = story
            .ops
            .iter()
            .filter(|op| op.fun != Fun::Complete && self.is_borne(story, op))
            .filter_map(|op| Some((op.answer?, op.lines[1])));
        let acknowledged = answered.clone().next().is_some();
        let (by, line) = answered.chain(shown).min_by_key(|(by, _)| *by)?;
        let until = begins.saturating_add(ttl);
        Some(Completed { from: first, by, ttl, until, acknowledged, line })
    }

    /// Returns whether the answer contains this owner's value.
    pub fn is_borne(&self, story: &Story, op: &Op) -> bool {
        let (Some(token), Some((scope, key, borne))) = (self.token, &op.bears) else {
            return false;
        };
        op.said(Said::Complete) && token == *borne && story.is_named(scope, key)
    }
}

impl Story {
    /// Returns how much of a lease or a ttl that the call began is certainly left, by the store's
    /// clock, at each instant up to `by`.
    #[must_use]
    pub fn left_of(&self, op: &Op, duration: u64, by: u64) -> u64 {
        self.clock.left_of(op, duration, by)
    }

    /// Returns whether this is the story of that identity.
    #[must_use]
    pub fn is_named(&self, scope: &str, key: &str) -> bool {
        self.scope == scope && self.key == key
    }

    /// Returns the owners whose grants are known, in the order of their tokens.
    pub fn known(&self) -> impl Iterator<Item = (&Tenure, u64)> {
        self.tenures.iter().filter_map(|tenure| Some((tenure, tenure.token?)))
    }

    /// Returns the owner with that token.
    #[must_use]
    pub fn by_token(&self, token: u64) -> Option<&Tenure> {
        self.tenures.iter().find(|tenure| tenure.token == Some(token))
    }

    /// Returns the interventions of operators that had seen the holder's token, or may have seen
    /// it: the token is unknown if no caller got the answer to the grant.
    pub fn forces<'s>(&'s self, holder: &'s Tenure) -> impl Iterator<Item = &'s Op> {
        let unheard = holder.maybe_grants(self).next().is_some();
        let is_its = move |token: u64| {
            holder.token == Some(token) || unheard && self.by_token(token).is_none()
        };
        self.ops.iter().filter(move |op| op.fun.is_force() && op.asked.is_some_and(is_its))
    }

    /// Returns whether an operator's intervention with one of these verbs, which was sent before
    /// `at`, may have changed the record of `holder`. If so, this excuses the judged call.
    #[must_use]
    pub fn may_be_forced(&self, holder: &Tenure, verbs: &[Fun], at: u64, judged: &Op) -> bool {
        let forced = self.forces(holder).any(|op| {
            let done = op.said(Said::Done) || op.is_info() || op.twice;
            verbs.contains(&op.fun) && op.invoke <= at && !op.failed && done
        });
        self.excuse(Excuse::Operator, judged, forced)
    }

    /// Returns whether an operator may have ended a lease while the call `op` was under way.
    pub(crate) fn is_forced_beside(&self, op: &Op) -> bool {
        self.ops.iter().any(|other| {
            matches!(other.fun, Fun::ForceRelease | Fun::ForceResolve)
                && !other.failed
                && other.invoke <= op.end()
                && other.end() >= op.invoke
        })
    }

    /// Returns whether an owner that is not in `except` may have held the record before the call
    /// `judged` was answered, without any answer in the history.
    #[must_use]
    pub fn strangers(&self, except: &[u128], judged: &Op) -> bool {
        let unseen = self.tenures.iter().any(|tenure| {
            !except.contains(&tenure.owner)
                && tenure.maybe_grants(self).any(|op| op.invoke <= judged.end())
        });
        self.excuse(Excuse::Stranger, judged, unseen)
    }
}
