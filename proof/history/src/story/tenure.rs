// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Tenure`]: all store calls of one owner, and what is certain about them.

use std::collections::HashMap;

use super::{Line, Op, Story};
use crate::event::{Fun, Said};

/// What one owner asked a store for.
#[derive(Debug, Clone)]
pub struct Tenure {
    /// Whose.
    pub owner: u128,
    /// Under which token, if its grant was answered.
    pub token: Option<u64>,
    /// Its store calls, by number in the story, in the order in which they were sent.
    pub ops: Vec<usize>,
}

/// The owners of a story: those whose grant is known in the order of their tokens, then the others.
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

/// When a completion took effect, as far as that is known.
#[derive(Debug, Clone, Copy)]
pub struct Completed {
    /// Not before.
    pub from: u64,
    /// Not after: it was answered, or a caller was handed its value.
    pub by: u64,
    /// Its ttl ends no earlier than this.
    pub until: u64,
    /// Whether the completion was acknowledged to its caller; else only other callers got the
    /// value.
    pub acknowledged: bool,
    /// What shows it.
    pub line: Option<Line>,
}

impl Tenure {
    /// Its calls of one kind.
    pub fn of<'s>(&'s self, story: &'s Story, fun: Fun) -> impl Iterator<Item = &'s Op> {
        self.ops.iter().map(|at| &story.ops[*at]).filter(move |op| op.fun == fun)
    }

    /// Its acquires that were granted.
    pub fn grants<'s>(&'s self, story: &'s Story) -> impl Iterator<Item = &'s Op> {
        self.of(story, Fun::Acquire).filter(|op| op.is_grant())
    }

    /// Its acquires whose grant may be unknown; one that was granted in the end may have been
    /// granted before.
    pub fn maybe_grants<'s>(&'s self, story: &'s Story) -> impl Iterator<Item = &'s Op> {
        self.of(story, Fun::Acquire).filter(|op| op.is_info() || op.twice)
    }

    /// Whether an acquire of its own, of which it heard nothing, may have arrived by `at`, however
    /// late, and have given it the lease again.
    pub fn may_have_asked(&self, story: &Story, at: u64) -> bool {
        self.of(story, Fun::Acquire).any(|op| op.is_info() && op.invoke <= at)
    }

    /// Its calls that certainly gave it a lease, or a longer one.
    pub fn leases<'s>(&'s self, story: &'s Story) -> impl Iterator<Item = &'s Op> {
        self.ops
            .iter()
            .map(|at| &story.ops[*at])
            .filter(|op| op.is_grant() || (op.fun == Fun::Extend && op.said(Said::Done)))
    }

    /// Whether its lease may have been ended, by a release or a completion that was sent before
    /// `at`, its own or an operator's.
    pub fn may_have_ended(&self, story: &Story, at: u64) -> bool {
        if story.may_be_forced(self, &[Fun::ForceRelease, Fun::ForceResolve], at) {
            return true;
        }
        let ends = |op: &&Op| op.invoke <= at && !op.failed && (op.twice || !op.said(Said::Lost));
        self.of(story, Fun::Complete).chain(self.of(story, Fun::Release)).any(|op| ends(&op))
    }

    /// Whether it may hold the record, known or not: it was granted it or was not told.
    pub fn may_have_held(&self, story: &Story, before: u64) -> bool {
        self.of(story, Fun::Acquire)
            .any(|op| op.invoke <= before && (op.is_grant() || op.is_info()))
    }

    /// Its completion, if it is certain that it took effect.
    pub fn completed(&self, story: &Story) -> Option<Completed> {
        let sent: Vec<&Op> = self.of(story, Fun::Complete).filter(|op| !op.failed).collect();
        let first = sent.iter().map(|op| op.invoke).min()?;
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
        Some(Completed { from: first, by, until: first.saturating_add(ttl), acknowledged, line })
    }

    /// Whether the answer brought this owner's value.
    pub fn is_borne(&self, story: &Story, op: &Op) -> bool {
        let (Some(token), Some((scope, key, borne))) = (self.token, &op.bears) else {
            return false;
        };
        op.said(Said::Complete) && token == *borne && story.is_named(scope, key)
    }
}

impl Story {
    /// Whether it is the story of that identity.
    #[must_use]
    pub fn is_named(&self, scope: &str, key: &str) -> bool {
        self.scope == scope && self.key == key
    }

    /// The owners whose grants are known, in the order of their tokens.
    pub fn known(&self) -> impl Iterator<Item = (&Tenure, u64)> {
        self.tenures.iter().filter_map(|tenure| Some((tenure, tenure.token?)))
    }

    /// The owner with that token.
    #[must_use]
    pub fn by_token(&self, token: u64) -> Option<&Tenure> {
        self.tenures.iter().find(|tenure| tenure.token == Some(token))
    }

    /// The interventions of operators who had seen the holder's token, or may have seen it: it is
    /// not known if no caller heard of the grant.
    pub fn forces<'s>(&'s self, holder: &'s Tenure) -> impl Iterator<Item = &'s Op> {
        let unheard = holder.maybe_grants(self).next().is_some();
        let is_its = move |token: u64| {
            holder.token == Some(token) || unheard && self.by_token(token).is_none()
        };
        self.ops.iter().filter(move |op| op.fun.is_force() && op.asked.is_some_and(is_its))
    }

    /// Whether one of them, by one of these verbs and sent before `at`, may have changed the
    /// record.
    #[must_use]
    pub fn may_be_forced(&self, holder: &Tenure, verbs: &[Fun], at: u64) -> bool {
        self.forces(holder).any(|op| {
            let done = op.said(Said::Done) || op.is_info() || op.twice;
            verbs.contains(&op.fun) && op.invoke <= at && !op.failed && done
        })
    }

    /// Whether an owner other than these may have held the record between the two instants, unseen
    /// by the history.
    #[must_use]
    pub fn strangers(&self, except: &[u128], before: u64) -> bool {
        self.tenures.iter().any(|tenure| {
            !except.contains(&tenure.owner)
                && tenure.maybe_grants(self).any(|op| op.invoke <= before)
        })
    }
}
