// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KeyTable`]: where wrapped data keys are kept, apart from the store.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use retryproof_core::Result;
use retryproof_core::seal::DataSubject;

use crate::master::WrappedKey;

/// The future of a call to a [`KeyTable`].
pub type TableFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The random id of a data key, which each sealed result contains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 16]);

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A row: the data key of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// The id of the key.
    pub id: KeyId,
    /// The [digest](DataSubject::digest) of the subject.
    pub subject: [u8; 32],
    /// The wrapped key; `None` if it was destroyed.
    pub wrapped: Option<WrappedKey>,
}

impl KeyRow {
    /// Returns what a wrapped key is bound to, so that the key opens in no other row.
    pub(crate) fn bound(&self) -> Vec<u8> {
        [&b"retryproof data key 1"[..], &self.id.0, &self.subject].concat()
    }
}

/// A table of wrapped data keys, with one row for each subject (SEAL-3).
///
/// Keep the table **apart from the store**, with backups of its own. A reader who has a copy of the
/// store, a copy of the table and the master key can read every result in the copy of the store.
pub trait KeyTable: fmt::Debug + Send + Sync + 'static {
    /// Finds the row of a subject.
    ///
    /// # Errors
    /// `Unavailable` if the table cannot be reached; `Corrupt` for a row that cannot be read.
    fn of_subject<'a>(&'a self, subject: &'a DataSubject) -> TableFuture<'a, Option<KeyRow>>;

    /// Finds the row of a key.
    ///
    /// # Errors
    /// Same as for [`of_subject`](Self::of_subject).
    fn by_id(&self, id: KeyId) -> TableFuture<'_, Option<KeyRow>>;

    /// Adds a row unless the subject has one, and returns the row that the subject then has. If two
    /// calls run concurrently, one of them adds its row, and both return that row.
    ///
    /// # Errors
    /// Same as for [`of_subject`](Self::of_subject).
    fn add(&self, row: KeyRow) -> TableFuture<'_, KeyRow>;

    /// Removes the wrapped key from the row of a subject permanently, and returns the row as it was
    /// before. If two calls run concurrently, only one of them returns the wrapped key.
    ///
    /// # Errors
    /// Same as for [`of_subject`](Self::of_subject).
    fn destroy<'a>(&'a self, subject: &'a DataSubject) -> TableFuture<'a, Option<KeyRow>>;

    /// Finds up to `limit` rows whose key is wrapped by a master key other than `master`. The rows
    /// are ordered by id and begin after the id `after`.
    ///
    /// # Errors
    /// Same as for [`of_subject`](Self::of_subject).
    fn not_under<'a>(
        &'a self,
        master: &'a str,
        after: Option<KeyId>,
        limit: usize,
    ) -> TableFuture<'a, Vec<KeyRow>>;

    /// Replaces the wrapped key of a row if that key is still `old`. Returns whether it was
    /// replaced. A key that was destroyed in the meantime stays destroyed.
    ///
    /// # Errors
    /// Same as for [`of_subject`](Self::of_subject).
    fn replace<'a>(
        &'a self,
        id: KeyId,
        old: &'a WrappedKey,
        new: &'a WrappedKey,
    ) -> TableFuture<'a, bool>;
}
