// SPDX-License-Identifier: MIT OR Apache-2.0
//! Losses of acknowledged writes at a failover: a story without what a loss may have undone.

use super::{Fault, Op, Run, Story, tenure};
use crate::event::{Fun, LOSS};

impl Run {
    /// Returns whether a failover may have undone the call: it was under way or answered in the
    /// time from which a failover may lose acknowledged writes. An earlier answer is safe, and a
    /// later call reached the new primary.
    #[must_use]
    pub fn may_be_lost(&self, op: &Op) -> bool {
        let end = op.answer.or(op.gave_up).unwrap_or(u64::MAX);
        !op.failed && self.faulty(op.invoke, end, Fault::is_loss)
    }

    /// Returns the story as if its calls that a failover may have undone had got no answer. Returns
    /// `None` if there is no such call.
    pub(crate) fn without_losses(&self, story: &Story) -> Option<Story> {
        let is_undone =
            |op: &Op| op.answer.is_some() && op.fun != Fun::Wait && self.may_be_lost(op);
        if !story.ops.iter().any(is_undone) {
            return None;
        }
        // Only the first judgement counts what it excuses.
        let mut rest = Story { excused: Default::default(), ..story.clone() };
        for op in rest.ops.iter_mut().filter(|op| is_undone(op)) {
            op.gave_up = op.answer.take();
            (op.said, op.remaining) = (None, None);
            (op.bears, op.stored_fp) = (None, None);
            if op.fun == Fun::Acquire || op.fun == Fun::Look {
                (op.token, op.value, op.tombstone) = (None, None, false);
            }
        }
        rest.tenures = tenure::tenures(&rest.ops);
        Some(rest)
    }
}

impl Fault {
    /// Returns whether this is the time from which a failover may lose acknowledged writes.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        self.lossy && self.name == LOSS
    }
}
