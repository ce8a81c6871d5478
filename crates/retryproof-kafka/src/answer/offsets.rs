// SPDX-License-Identifier: MIT OR Apache-2.0
//! The low-water mark of a partition: no offset moves past a message that is not done.

use std::collections::BTreeSet;

/// Which messages of a partition are begun and not done. A group commits one number for a
/// partition, so that number is the lowest of them.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    open: BTreeSet<i64>,
    /// Behind the last one that was begun.
    next: i64,
    stored: Option<i64>,
    /// How often the offsets went backwards.
    rewinds: u64,
}

/// A message that was begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    offset: i64,
    rewinds: u64,
}

impl Marks {
    /// A message is taken on. They come in the order of their offsets, but where a log was cut off,
    /// or an offset reset, they begin again further down. The mark goes there with them: what is
    /// read twice is skipped or new, and what was begun before says nothing of it.
    pub(crate) fn begin(&mut self, offset: i64) -> Begun {
        if offset < self.next {
            *self = Self { rewinds: self.rewinds + 1, ..Self::default() };
        }
        self.open.insert(offset);
        self.next = offset + 1;
        Begun { offset, rewinds: self.rewinds }
    }

    /// A message is done. The offset to store, if it moved: the next one to be read by whoever has
    /// the partition then.
    pub(crate) fn done(&mut self, Begun { offset, rewinds }: Begun) -> Option<i64> {
        if rewinds != self.rewinds {
            return None;
        }
        self.open.remove(&offset);
        let mark = self.open.first().copied().unwrap_or(self.next);
        if self.stored.is_some_and(|stored| stored >= mark) {
            return None;
        }
        // The lowest open one may be the first of all: then nothing is done that nothing stands
        // before.
        if mark <= offset
            && self.stored.is_none()
            && self.open.first().is_some_and(|first| *first < offset)
        {
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
        let [five, six, seven, nine] = [5, 6, 7, 9].map(|offset| marks.begin(offset));
        assert_eq!(marks.done(six), None, "5 is not done");
        assert_eq!(marks.done(nine), None);
        assert_eq!(marks.done(five), Some(7), "and 6 with it");
        assert_eq!(
            marks.done(seven),
            Some(10),
            "8 was never there: compacted away, or a transaction's mark"
        );
        let ten = marks.begin(10);
        assert_eq!(marks.done(ten), Some(11));
    }

    #[test]
    fn lst_2_offsets_that_go_backwards_take_the_mark_with_them() {
        let mut marks = Marks::default();
        let [seven, eight] = [7, 8].map(|offset| marks.begin(offset));
        assert_eq!(marks.done(seven), Some(8));
        let again = [6, 7, 8].map(|offset| marks.begin(offset));
        assert_eq!(marks.done(eight), None, "that was another 8");
        assert_eq!(marks.done(again[0]), Some(7));
        assert_eq!(marks.done(again[2]), None, "7 is not done");
        assert_eq!(marks.done(again[1]), Some(9));
    }
}
