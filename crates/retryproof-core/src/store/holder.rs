// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HolderNote`]: the note that a grant adds to its record, so that an operator can find the
//! process that holds a key (REC-2).
//!
//! Layout, version 1, little endian, at most 64 bytes:
//!
//! | at | bytes | content |
//! |---|---|---|
//! | 0 | 1 | version |
//! | 1 | 1 | flags: 1 = a trace follows, 2 = the trace was sampled; readers ignore other flags |
//! | 2 | 4 | the last 4 bytes of the owner |
//! | 6 | 4 | the length of the lease in milliseconds, saturating |
//! | 10 | 0 or 24 | trace id and span id |
//! | rest | 0 to 54 | the label, UTF-8 |
//!
//! All versions of this layout keep the fields version and owner at these positions. A program
//! without support for notes leaves the note of an earlier grant in the record. A reader ignores
//! that note, because the owner bytes in it differ from those of the record's owner.

use std::fmt;
use std::time::Duration;

use crate::owner::OwnerId;

const VERSION: u8 = 1;
const TRACED: u8 = 1;
const SAMPLED: u8 = 2;
const OWNER: usize = 2;
const LEASE: usize = OWNER + 4;
const HEADER: usize = LEASE + 4;
const TRACE: usize = 24;

/// Describes the holder of a lease: the label of its process, the length of its lease, and the
/// trace to which its call belongs. The engine writes a note for each grant, and the store keeps
/// the note's bytes unchanged with the record (REC-2). For a store in the memory of this process,
/// the engine writes a note only if the call has a trace.
///
/// ```
/// use std::time::Duration;
/// use retryproof_core::OwnerId;
/// use retryproof_core::store::HolderNote;
///
/// let owner = OwnerId::new();
/// let note = HolderNote::new(owner, Duration::from_secs(30), None, "payments-7f9c:4711");
/// assert!(note.as_bytes().len() <= HolderNote::MAX_BYTES);
///
/// // A store returns the note only for the owner that it was written for.
/// let read = HolderNote::of_owner(note.as_bytes(), owner).expect("the note is the owner's");
/// assert_eq!(read.label(), Some("payments-7f9c:4711"));
/// assert_eq!(read.lease(), Some(Duration::from_secs(30)));
/// assert!(HolderNote::of_owner(note.as_bytes(), OwnerId::new()).is_none());
/// ```
// The bytes are stored inline, so that dropping a note needs no code. The answer to an acquire can
// contain a note. Without code for the note, the drop of that answer is small enough for the
// compiler to inline.
#[derive(Clone, PartialEq, Eq)]
pub struct HolderNote {
    /// The note in the first `len` bytes, followed by zeros.
    bytes: [u8; Self::MAX_BYTES],
    len: usize,
}

/// The position of a call in a distributed trace: the ids that `traceparent` carries (W3C Trace
/// Context).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The id of the call's span in the trace.
    pub span_id: [u8; 8],
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl HolderNote {
    /// The maximum length of a note, in bytes.
    pub const MAX_BYTES: usize = 64;

    /// Writes the note of a grant. If the label does not fit, its beginning is cut off, because the
    /// names of pods and processes differ at the end.
    #[must_use]
    pub fn new(owner: OwnerId, lease: Duration, trace: Option<TraceContext>, label: &str) -> Self {
        let used = HEADER + trace.map_or(0, |_| TRACE);
        let label = end_of(label, Self::MAX_BYTES - used);
        let mut note = Self::empty();
        let flags = trace.map_or(0, |trace| TRACED | if trace.sampled { SAMPLED } else { 0 });
        note.append(&[VERSION, flags]);
        note.append(end_of_owner(&owner));
        let lease = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        note.append(&lease.to_le_bytes());
        if let Some(trace) = trace {
            note.append(&trace.trace_id);
            note.append(&trace.span_id);
        }
        note.append(label.as_bytes());
        note
    }

    /// Reads the note that a store kept for the grant to `owner`. Returns `None` if the bytes are
    /// not a note, or if the note belongs to an earlier grant.
    #[must_use]
    pub fn of_owner(bytes: &[u8], owner: OwnerId) -> Option<Self> {
        let written_for = bytes.get(OWNER..LEASE)?;
        if bytes.len() > Self::MAX_BYTES || written_for != end_of_owner(&owner) {
            return None;
        }
        let mut note = Self::empty();
        note.append(bytes);
        Some(note)
    }

    fn empty() -> Self {
        Self { bytes: [0; Self::MAX_BYTES], len: 0 }
    }

    fn append(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    /// Returns the bytes for a store to keep.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Whether a newer version of this library wrote the note. This version cannot read the content
    /// of such a note.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        self.bytes[0] > VERSION
    }

    /// Returns the label of the process that took the lease; `None` if the note has no label or
    /// cannot be read.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        let at = if self.flags()? & TRACED == 0 { HEADER } else { HEADER + TRACE };
        std::str::from_utf8(self.as_bytes().get(at..)?).ok().filter(|label| !label.is_empty())
    }

    /// Returns the length of the lease as requested at the grant; `None` if the note cannot be
    /// read.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.flags()?;
        let bytes = self.as_bytes().get(LEASE..HEADER)?.first_chunk()?;
        Some(Duration::from_millis(u32::from_le_bytes(*bytes).into()))
    }

    /// Returns the trace of the call that took the lease; `None` if the call had no trace or the
    /// note cannot be read.
    #[must_use]
    pub fn trace(&self) -> Option<TraceContext> {
        let flags = self.flags()?;
        if flags & TRACED == 0 {
            return None;
        }
        let ids = self.as_bytes().get(HEADER..HEADER + TRACE)?;
        let (trace_id, span_id) = ids.split_first_chunk()?;
        Some(TraceContext {
            trace_id: *trace_id,
            span_id: *span_id.first_chunk()?,
            sampled: flags & SAMPLED != 0,
        })
    }

    /// Returns the flags, or `None` if this version cannot read the note.
    fn flags(&self) -> Option<u8> {
        match *self.as_bytes() {
            [VERSION, flags, ..] => Some(flags),
            _ => None,
        }
    }
}

/// Prints the label, the lease and whether there is a trace, none of which is secret.
impl fmt::Debug for HolderNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HolderNote")
            .field("label", &self.label())
            .field("lease", &self.lease())
            .field("traced", &self.trace().is_some())
            .finish()
    }
}

/// Returns the last bytes of an owner id, the part that the note contains. The first bytes would
/// not distinguish owners: they are the same in all ids that a process creates for its memory
/// store.
fn end_of_owner(owner: &OwnerId) -> &[u8] {
    &owner.as_bytes()[12..]
}

/// Returns the end of `text`, at most `limit` bytes long and cut between two characters.
fn end_of(text: &str, limit: usize) -> &str {
    let from = text.len().saturating_sub(limit);
    let from = (from..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: TraceContext = TraceContext { trace_id: [7; 16], span_id: [9; 8], sampled: true };

    #[test]
    fn rec_2_a_note_comes_back_as_it_was_written() {
        let owner = OwnerId::new();
        for trace in [None, Some(TRACE), Some(TraceContext { sampled: false, ..TRACE })] {
            let note = HolderNote::new(owner, Duration::from_millis(1_500), trace, "host:1");
            let read = HolderNote::of_owner(note.as_bytes(), owner).unwrap();
            assert_eq!(read, note);
            assert_eq!(read.label(), Some("host:1"));
            assert_eq!(read.lease(), Some(Duration::from_millis(1_500)));
            assert_eq!(read.trace(), trace);
            assert!(!read.is_newer());
        }
        let note = HolderNote::new(owner, Duration::MAX, None, "");
        assert_eq!(note.lease(), Some(Duration::from_millis(u32::MAX.into())));
        assert_eq!(note.label(), None);
    }

    /// The owner ids that a process creates for its memory store differ only in their last bytes.
    #[test]
    fn rec_2_owners_of_one_process_have_separate_notes() {
        let (first, second) = (OwnerId::of_this_process(), OwnerId::of_this_process());
        let note = HolderNote::new(first, Duration::from_secs(30), None, "host:1");
        assert!(HolderNote::of_owner(note.as_bytes(), second).is_none());
        assert_eq!(HolderNote::of_owner(note.as_bytes(), first), Some(note));
    }

    #[test]
    fn rec_2_a_label_that_is_too_long_keeps_its_end() {
        let (owner, lease) = (OwnerId::new(), Duration::from_secs(30));
        for (trace, room) in [(None, 54), (Some(TRACE), 30)] {
            let long = format!("{}:4711", "pod-".repeat(30));
            let note = HolderNote::new(owner, lease, trace, &long);
            assert_eq!(note.as_bytes().len(), HolderNote::MAX_BYTES);
            assert_eq!(note.label(), Some(&long[long.len() - room..]));
            // A character that does not fit completely is left out.
            let wide = "\u{20ac}".repeat(40);
            let note = HolderNote::new(owner, lease, trace, &wide);
            assert_eq!(note.label().map(|label| label.chars().count()), Some(room / 3));
        }
    }

    #[test]
    fn rec_2_a_note_of_another_grant_or_version_is_never_an_error() {
        let owner = OwnerId::new();
        let note = HolderNote::new(owner, Duration::from_secs(30), Some(TRACE), "host:1");
        assert!(HolderNote::of_owner(note.as_bytes(), OwnerId::new()).is_none());
        for cut in 0..note.as_bytes().len() {
            if let Some(read) = HolderNote::of_owner(&note.as_bytes()[..cut], owner) {
                let _ = (read.label(), read.lease(), read.trace(), read.is_newer());
            }
        }
        let mut newer = note.as_bytes().to_vec();
        newer[0] = 2;
        let read = HolderNote::of_owner(&newer, owner).unwrap();
        assert!(read.is_newer());
        assert_eq!((read.label(), read.lease(), read.trace()), (None, None, None));
        let mut flagged = note.as_bytes().to_vec();
        flagged[1] |= 0x80;
        assert_eq!(HolderNote::of_owner(&flagged, owner).unwrap().label(), Some("host:1"));
        assert!(HolderNote::of_owner(&[1; 65], OwnerId::from_bytes([1; 16])).is_none());
    }
}
