// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`is_rewound`]: whether tokens fell because the store's clock was set back.

use super::{Op, Story};
use crate::event::Fun;
use crate::when::slop;

/// A token that a store showed: the two instants between which the store showed it, and the token.
type Shown = (u64, u64, u64);

/// Returns whether the store showed a smaller token than one that it had shown before, for a reason
/// that the stores document: in between, the record's ttl may have ended, and the clock was set
/// back. Either token may come from a grant whose answer no caller got.
pub(super) fn is_rewound(story: &Story) -> bool {
    let answered = story.ops.iter().filter(|op| !op.fun.is_force());
    let answers = answered.filter_map(|op| Some((op.invoke, op.answer?, op.token?)));
    let dumps = story.dumps.iter().map(|dump| (dump.at, dump.at, dump.token));
    let shown: Vec<Shown> = answers.chain(dumps).collect();
    shown.iter().any(|(since, by, larger)| {
        let fell = |(from, to, token): &Shown| {
            by < from
                && larger > token
                && story.clock.is_set_back(*since, *to)
                && may_be_gone(story, *to)
        };
        shown.iter().any(fell)
    })
}

/// Returns whether a record of this story may have disappeared by then because its ttl had ended.
fn may_be_gone(story: &Story, by: u64) -> bool {
    let unfinished = story.tenures.iter().any(|holder| {
        holder.of(story, Fun::Acquire).any(|asked| {
            let mut resets = holder.resets(story, asked, by).chain([asked]);
            resets.any(|op| story.left_of(op, asked.ttl, by) <= slop(asked.ttl))
        })
    });
    let complete = |op: &Op| matches!(op.fun, Fun::Complete | Fun::ForceResolve);
    unfinished
        || story.ops.iter().any(|op| {
            complete(op) && op.invoke < by && story.left_of(op, op.ttl, by) <= slop(op.ttl)
        })
}
