// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`is_rewound`]: whether tokens fell because the store's clock was set back.

use super::{Op, Story};
use crate::event::Fun;
use crate::when::slop;

/// A token that a store showed: between which instants, and which.
type Shown = (u64, u64, u64);

/// Whether the store showed a smaller token than one that it had shown before, for a reason that the
/// stores document: in between, the record may have gone with its ttl, and the clock was set back.
/// Either token may be of a grant that no caller heard of.
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

/// Whether a record of this story may have gone with its ttl by then.
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
