// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`OffsetTracker`]: finds the offset that can be committed for a partition.

use std::collections::BTreeSet;

/// Tracks which messages of a partition are being handled. A group commits one offset for each
/// partition: the offset of the first message that is not done.
#[derive(Debug, Default)]
pub(crate) struct OffsetTracker {
    open: BTreeSet<i64>,
    /// One past the offset of the last message whose handling has begun.
    next: i64,
    stored: Option<i64>,
    /// How many times the tracker has restarted because an offset was lower than expected.
    rewinds: u64,
}

/// A message that is being handled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenOffset {
    offset: i64,
    rewinds: u64,
}

impl OffsetTracker {
    /// Begins to track a message. Offsets rise, unless the log is truncated or the group's offset
    /// is reset. If an offset is lower than expected, the tracker restarts and ignores the messages
    /// that it tracked before.
    pub(crate) fn begin(&mut self, offset: i64) -> OpenOffset {
        if offset < self.next {
            *self = Self { rewinds: self.rewinds + 1, ..Self::default() };
        }
        self.open.insert(offset);
        self.next = offset + 1;
        OpenOffset { offset, rewinds: self.rewinds }
    }

    /// Marks a message as done. Returns the offset to store if that offset has moved. The
    /// partition's next owner starts to read at this offset.
    pub(crate) fn done(&mut self, OpenOffset { offset, rewinds }: OpenOffset) -> Option<i64> {
        if rewinds != self.rewinds {
            return None;
        }
        self.open.remove(&offset);
        let lowest = self.open.first().copied().unwrap_or(self.next);
        if self.stored.is_some_and(|stored| stored >= lowest) {
            return None;
        }
        // Store no offset until the partition's first message is done.
        if lowest <= offset
            && self.stored.is_none()
            && self.open.first().is_some_and(|first| *first < offset)
        {
            return None;
        }
        self.stored = Some(lowest);
        Some(lowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lst_2_the_offset_stays_before_the_first_message_that_is_not_done() {
        let mut tracker = OffsetTracker::default();
        let [five, six, seven, nine] = [5, 6, 7, 9].map(|offset| tracker.begin(offset));
        assert_eq!(tracker.done(six), None, "5 is not done");
        assert_eq!(tracker.done(nine), None);
        assert_eq!(tracker.done(five), Some(7), "6 is done as well");
        assert_eq!(
            tracker.done(seven),
            Some(10),
            "offset 8 was never read: it was compacted, or is a transaction marker"
        );
        let ten = tracker.begin(10);
        assert_eq!(tracker.done(ten), Some(11));
    }

    #[test]
    fn lst_2_offsets_that_go_backwards_take_the_mark_with_them() {
        let mut tracker = OffsetTracker::default();
        let [seven, eight] = [7, 8].map(|offset| tracker.begin(offset));
        assert_eq!(tracker.done(seven), Some(8));
        let again = [6, 7, 8].map(|offset| tracker.begin(offset));
        assert_eq!(tracker.done(eight), None, "offset 8 was begun before the offsets were reset");
        assert_eq!(tracker.done(again[0]), Some(7));
        assert_eq!(tracker.done(again[2]), None, "7 is not done");
        assert_eq!(tracker.done(again[1]), Some(9));
    }
}
