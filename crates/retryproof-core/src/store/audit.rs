// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Audit`]: a store's table of what operators requested, and with which outcome (OPS-10).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use super::shared::StoreCall;
use super::{IdempotencyStore, ScanCursor, SharedStore};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::owner::FencingToken;
use crate::panics::caught;

/// Keeps entries about interventions in a table beside the records (OPS-10). A store without tables
/// does not implement this trait.
#[diagnostic::on_unimplemented(
    message = "the store `{Self}` keeps no audit table",
    label = "expected a store that implements `Audit`",
    note = "implement `Audit`, or leave out `with_audit()`"
)]
pub trait Audit: IdempotencyStore {
    /// Appends an entry, with the time of the store's clock. The entry is committed when the call
    /// returns. [`SharedStore::append_audit`] has already checked that every store can keep the
    /// entry.
    ///
    /// A dropped call may have appended the entry. If the answer of the server is lost, the store
    /// may send the entry again, so the table may contain it twice.
    ///
    /// # Errors
    /// `Schema` if the table is missing; otherwise the store's errors.
    fn append(&self, entry: &AuditEntry) -> impl Future<Output = Result<()>> + Send;

    /// Reads one page of entries, the newest first. A page starts at the newest entry, or after the
    /// cursor that the previous page returned. The call reads about `limit` entries, but at least
    /// one, and no more than the store's own limit. The store never counts the entries before a
    /// page.
    ///
    /// # Errors
    /// `Invalid` for a cursor that the store cannot read; `Schema` if the table is missing;
    /// otherwise the store's errors. An entry that cannot be read is not an error: the page counts
    /// it (CMP-8).
    fn entries(
        &self,
        after: Option<&ScanCursor>,
        limit: usize,
    ) -> impl Future<Output = Result<AuditPage>> + Send;
}

/// One line of an audit table: a request of an operator, or its outcome.
///
/// ```
/// use retryproof_core::store::AuditEntry;
/// use retryproof_core::{FencingToken, Identity};
///
/// let id = Identity::of("payments", "order-17")?;
/// let requested = AuditEntry::new("release", "alice@ops-1", "pod-7 was deleted")
///     .with_record(id, FencingToken::new(7));
/// requested.check()?;
/// let applied = requested.with_outcome("applied");
/// # let _ = applied;
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// The record and the token that the operator named; `None` if the request is about the whole
    /// store. A store with hashed identities keeps and returns a digest in place of the key (ID-5).
    pub record: Option<(Identity, FencingToken)>,
    /// What was requested, such as `release`.
    pub verb: String,
    /// `requested`, or the outcome of the request.
    pub outcome: String,
    /// Who requested it. Nothing verifies this name.
    pub operator: String,
    /// Why it was requested.
    pub reason: String,
    /// When the entry was appended, in microseconds since 1970 by the store's clock; `None` until
    /// then.
    pub at_micros: Option<u64>,
}

impl AuditEntry {
    /// The maximum length of a verb or of an outcome, in bytes.
    pub const MAX_WORD_BYTES: usize = 64;
    /// The maximum length of an operator's name, in bytes.
    pub const MAX_OPERATOR_BYTES: usize = 255;
    /// The maximum length of a reason, in bytes.
    pub const MAX_REASON_BYTES: usize = 1_024;

    /// Creates an entry with the outcome `requested`, about the whole store.
    #[must_use]
    pub fn new(
        verb: impl Into<String>,
        operator: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            record: None,
            verb: verb.into(),
            outcome: "requested".to_owned(),
            operator: operator.into(),
            reason: reason.into(),
            at_micros: None,
        }
    }

    /// Sets the record that the request is about, and the token that the operator named.
    #[must_use]
    pub fn with_record(mut self, id: Identity, token: FencingToken) -> Self {
        self.record = Some((id, token));
        self
    }

    /// Sets the outcome.
    #[must_use]
    pub fn with_outcome(mut self, outcome: impl Into<String>) -> Self {
        self.outcome = outcome.into();
        self
    }

    /// Sets the time of an entry that a store returns, in microseconds since 1970.
    #[must_use]
    pub fn with_time(mut self, micros: u64) -> Self {
        self.at_micros = Some(micros);
        self
    }

    /// Checks that every store can keep the entry: no text is empty, has a zero byte, or is longer
    /// than its maximum.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]. The message names the text and its maximum.
    pub fn check(&self) -> Result<()> {
        for (name, text, max) in [
            ("verb", &self.verb, Self::MAX_WORD_BYTES),
            ("outcome", &self.outcome, Self::MAX_WORD_BYTES),
            ("operator", &self.operator, Self::MAX_OPERATOR_BYTES),
            ("reason", &self.reason, Self::MAX_REASON_BYTES),
        ] {
            if text.is_empty() || text.len() > max || text.contains('\0') {
                let message = format!("the {name} must have 1 to {max} bytes, and no zero byte");
                return Err(Error::new(ErrorKind::Invalid, message).with("bytes", text.len()));
            }
        }
        Ok(())
    }
}

/// One page of an audit table.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct AuditPage {
    /// The entries, the newest first.
    pub entries: Vec<AuditEntry>,
    /// The number of entries that cannot be read.
    pub unreadable: u64,
    /// Where the next page starts; `None` after the last page.
    pub next: Option<ScanCursor>,
}

impl AuditPage {
    /// Creates a page for a store to return.
    #[must_use]
    pub fn new(entries: Vec<AuditEntry>, unreadable: u64, next: Option<ScanCursor>) -> Self {
        Self { entries, unreadable, next }
    }
}

/// The object-safe form of [`Audit`].
pub(super) trait DynAudit: Send + Sync {
    fn dyn_append(self: Arc<Self>, entry: AuditEntry) -> StoreCall<()>;
    fn dyn_entries(
        self: Arc<Self>,
        after: Option<ScanCursor>,
        limit: usize,
    ) -> StoreCall<AuditPage>;
}

impl<S: Audit> DynAudit for S {
    fn dyn_append(self: Arc<Self>, entry: AuditEntry) -> StoreCall<()> {
        Box::pin(async move { caught(pin!(async { self.append(&entry).await })).await })
    }

    fn dyn_entries(
        self: Arc<Self>,
        after: Option<ScanCursor>,
        limit: usize,
    ) -> StoreCall<AuditPage> {
        Box::pin(
            async move { caught(pin!(async { self.entries(after.as_ref(), limit).await })).await },
        )
    }
}

impl SharedStore {
    /// Whether the store keeps an audit table (OPS-10).
    #[must_use]
    pub fn can_audit(&self) -> bool {
        self.audit.is_some()
    }

    /// Appends an entry to the store's audit table, as [`Audit::append`] does. Returns `false` if
    /// the store keeps no such table.
    ///
    /// # Errors
    /// `Invalid` if [`AuditEntry::check`] refuses the entry; `Schema` if the table is missing;
    /// otherwise the store's errors.
    pub async fn append_audit(&self, entry: &AuditEntry) -> Result<bool> {
        entry.check().map_err(|error| error.during("append_audit"))?;
        match &self.audit {
            Some(audit) => Arc::clone(audit).dyn_append(entry.clone()).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Returns one page of the audit table, as [`Audit::entries`] does, or `None` if the store keeps
    /// no such table.
    ///
    /// # Errors
    /// Same as for [`Audit::entries`].
    pub async fn audit_entries(
        &self,
        after: Option<&ScanCursor>,
        limit: usize,
    ) -> Result<Option<AuditPage>> {
        match &self.audit {
            Some(audit) => Arc::clone(audit).dyn_entries(after.cloned(), limit).await.map(Some),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> AuditEntry {
        AuditEntry::new("release", "alice", "because")
    }

    #[test]
    fn ops_10_each_text_has_its_bound() {
        assert!(entry().check().is_ok());
        let reason = |reason: String| AuditEntry { reason, ..entry() }.check();
        assert!(reason("r".repeat(1_024)).is_ok());
        for bad in [String::new(), "r".repeat(1_025), "a\0b".to_owned()] {
            let error = reason(bad).expect_err("a refusal");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("the reason must have 1 to 1024 bytes"), "{error}");
        }
        let operator = |operator: String| AuditEntry { operator, ..entry() }.check();
        assert!(operator("é".repeat(127)).is_ok() && operator("é".repeat(128)).is_err());
        let verb = |verb: String| AuditEntry { verb, ..entry() }.check();
        assert!(verb("v".repeat(64)).is_ok() && verb("v".repeat(65)).is_err());
        let outcome = |length| entry().with_outcome("o".repeat(length)).check();
        assert!(outcome(64).is_ok() && outcome(65).is_err());
    }

    #[test]
    fn id_4_an_entry_prints_no_key() {
        let id = Identity::of("pay", "canary").expect("a valid identity");
        let text = format!("{:?}", entry().with_record(id, FencingToken::new(1)));
        assert!(text.contains("pay#") && !text.contains("canary"), "{text}");
    }
}
