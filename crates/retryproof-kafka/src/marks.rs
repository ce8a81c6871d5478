// SPDX-License-Identifier: MIT OR Apache-2.0
//! The low-water mark of a partition: no offset moves past a message that is not done.

use std::collections::BTreeSet;

/// Which messages of a partition are begun and not done. A group commits one number for a partition, so that number is the lowest of them.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    open: BTreeSet<i64>,
    /// Behind the last one that was begun.
    next: i64,
    stored: Option<i64>,
}

impl Marks {
    /// A message is taken on. They come in the order of their offsets.
    pub(crate) fn begin(&mut self, offset: i64) {
        self.open.insert(offset);
        self.next = offset + 1;
    }

    /// A message is done. The offset to store, if it moved: the next one to be read by whoever has the partition then.
    pub(crate) fn done(&mut self, offset: i64) -> Option<i64> {
        self.open.remove(&offset);
        let mark = self.open.first().copied().unwrap_or(self.next);
        if self.stored.is_some_and(|stored| stored >= mark) {
            return None;
        }
        // The lowest open one may be the first of all: then nothing is done that nothing stands before.
        if mark <= offset && self.stored.is_none() && self.open.first().is_some_and(|first| *first < offset) {
            return None;
        }
        self.stored = Some(mark);
        Some(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lst_2_the_offset_stays_before_the_first_message_that_is_not_done() {
        let mut marks = Marks::default();
        [5, 6, 7, 9].into_iter().for_each(|offset| marks.begin(offset));
        assert_eq!(marks.done(6), None, "5 is not done");
        assert_eq!(marks.done(9), None);
        assert_eq!(marks.done(5), Some(7), "and 6 with it");
        assert_eq!(marks.done(7), Some(10), "8 was never there: compacted away, or a transaction's mark");
        marks.begin(10);
        assert_eq!(marks.done(10), Some(11));
    }
}
