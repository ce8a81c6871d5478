// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Blob`]: bytes with a reference count, so that a replay does not copy the value.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytes::Bytes;

/// Immutable shared bytes: either [`Bytes`] or a window of an `Arc<[u8]>`.
///
/// A store that keeps a whole record in one allocation can return the value as a window of it,
/// without another allocation. `Debug` prints the length, never the content (ID-4).
#[derive(Clone, Default)]
pub struct Blob(Repr);

#[derive(Clone)]
enum Repr {
    Bytes(Bytes),
    Window { whole: Arc<[u8]>, start: usize, end: usize },
}

impl Default for Repr {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl Blob {
    /// Creates a blob from the bytes that `range` selects in a shared allocation. A range that
    /// reaches past the end is truncated.
    #[inline]
    #[must_use]
    pub fn window(whole: Arc<[u8]>, range: Range<usize>) -> Self {
        let end = range.end.min(whole.len());
        Self(Repr::Window { start: range.start.min(end), end, whole })
    }

    /// Returns the bytes from index `at` on, without copying them.
    #[must_use]
    pub fn skip(&self, at: usize) -> Self {
        match &self.0 {
            Repr::Bytes(bytes) => Self(Repr::Bytes(bytes.slice(at.min(bytes.len())..))),
            Repr::Window { whole, start, end } => {
                Self::window(Arc::clone(whole), start.saturating_add(at)..*end)
            }
        }
    }

    /// Like [`skip`](Self::skip), but consumes `self`, so that the allocation's reference count
    /// stays the same.
    #[must_use]
    pub(crate) fn into_rest(self, at: usize) -> Self {
        match self.0 {
            Repr::Bytes(bytes) => Self(Repr::Bytes(bytes.slice(at.min(bytes.len())..))),
            Repr::Window { whole, start, end } => {
                Self::window(whole, start.saturating_add(at)..end)
            }
        }
    }

    /// Converts to [`Bytes`] without copying the bytes.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Repr::Bytes(bytes) => bytes,
            Repr::Window { .. } => Bytes::from_owner(self),
        }
    }
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Bytes(bytes) => bytes,
            Repr::Window { whole, start, end } => whole.get(*start..*end).unwrap_or_default(),
        }
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Repr::Bytes(bytes.into()))
    }
}

impl From<Bytes> for Blob {
    fn from(bytes: Bytes) -> Self {
        Self(Repr::Bytes(bytes))
    }
}

impl From<Arc<[u8]>> for Blob {
    fn from(whole: Arc<[u8]>) -> Self {
        let end = whole.len();
        Self(Repr::Window { whole, start: 0, end })
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Blob {}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.len())
    }
}
