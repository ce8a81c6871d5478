// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`AuditRows`] builds the pages of an audit table, whose rows are numbered in the order in which
//! they were appended (OPS-10).

use retryproof_core::store::{AuditEntry, AuditPage, ScanCursor};
use retryproof_core::{Error, ErrorKind, FencingToken, Result};

use crate::errors::unreadable;
use crate::page::identity;

/// The largest number of rows that one page reads.
const MAX_ROWS: usize = 1_000;

/// One page of an audit table, newest entry first. The page is built from the rows before a given
/// number.
#[derive(Debug)]
pub struct AuditRows {
    limit: usize,
    page: AuditPage,
    read: usize,
    last: i64,
}

impl AuditRows {
    /// Begins a page that reads `limit` rows, but at least 1 and at most 1,000.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let limit = limit.clamp(1, MAX_ROWS);
        Self { limit, page: AuditPage::default(), read: 0, last: 0 }
    }

    /// Returns how many rows to read.
    #[must_use]
    pub fn limit(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX)
    }

    /// Adds the row with this number. A row that cannot be read adds only to the page's count of
    /// unreadable entries.
    ///
    /// # Errors
    /// The error of `entry`, unless it is `Corrupt`.
    pub fn add(&mut self, number: i64, entry: Result<AuditEntry>) -> Result<()> {
        self.read += 1;
        self.last = number;
        match entry {
            Ok(entry) => self.page.entries.push(entry),
            Err(error) if error.kind() == ErrorKind::Corrupt => self.page.unreadable += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns the page. The page is the last one if fewer rows than the limit were added.
    #[must_use]
    pub fn finish(mut self) -> AuditPage {
        if self.read >= self.limit {
            self.page.next = Some(ScanCursor::new(self.last.to_be_bytes()));
        }
        self.page
    }

    /// Returns the number that all rows of a page must be below.
    ///
    /// # Errors
    /// `Invalid` if the cursor does not have the form that [`finish`](Self::finish) writes.
    pub fn start(after: Option<&ScanCursor>) -> Result<i64> {
        let Some(after) = after else { return Ok(i64::MAX) };
        after.as_bytes().try_into().map(i64::from_be_bytes).map_err(|_| {
            Error::new(
                ErrorKind::Invalid,
                "no audit table returned this cursor; read again without a cursor",
            )
            .with("bytes", after.as_bytes().len())
        })
    }
}

/// Builds an entry from the columns of a row: the time in microseconds since 1970, scope, key and
/// token of the record, and verb, outcome, operator and reason. A row about the whole store has
/// neither scope nor key. A row about a record has no token if the operator passed the token 0.
///
/// # Errors
/// `Corrupt` if the store cannot have written the row (CMP-8).
pub fn audit_entry(
    micros: i64,
    record: (Option<&[u8]>, Option<&[u8]>, Option<i64>),
    [verb, outcome, operator, reason]: [String; 4],
) -> Result<AuditEntry> {
    let micros = u64::try_from(micros).map_err(|_| unreadable("written_at"))?;
    let entry = AuditEntry::new(verb, operator, reason).with_outcome(outcome).with_time(micros);
    let (scope, key, token) = match record {
        (None, None, _) => return Ok(entry),
        (Some(scope), Some(key), token) => (scope, key, token.unwrap_or(0)),
        _ => return Err(unreadable("scope")),
    };
    let token = u64::try_from(token).map_err(|_| unreadable("token"))?;
    Ok(entry.with_record(identity(scope, key)?, FencingToken::new(token)))
}

/// Returns scope, key and token of an entry as a store's columns hold them: without a record, there
/// is neither scope nor key, and the token is 0.
#[must_use]
pub fn audit_columns(entry: &AuditEntry) -> (Option<&[u8]>, Option<&[u8]>, i64) {
    match &entry.record {
        None => (None, None, 0),
        Some((id, token)) => (
            Some(id.scope().as_str().as_bytes()),
            Some(id.key().expose().as_bytes()),
            i64::try_from(token.get()).unwrap_or(i64::MAX),
        ),
    }
}

/// Logs that a migration has left the audit table out, because its user may not create tables.
#[cold]
pub fn warn_no_audit_table(table: &str) {
    tracing::warn!(
        table,
        "the audit table is missing, and this user is not allowed to create it; the command \
         `retryproof` refuses to change records until a user who may create tables has called \
         `migrate`"
    );
}

/// Returns the error of a statement on the audit table. If the table or a privilege is missing, the
/// message names the remedy. `is_denied` is true if the user lacks a privilege.
#[must_use]
#[cold]
pub fn audit_refused(error: Error, is_denied: bool, table: &str) -> Error {
    let message = match error.kind() {
        _ if is_denied => "the user may not use the audit table; GRANT it INSERT and SELECT on it",
        ErrorKind::Schema => {
            "the audit table is missing or does not have the expected columns; call \
             `retryproof::migrate(url)` as a user that may create tables"
        }
        _ => return error,
    };
    Error::new(error.kind(), message).with("table", format_args!("{table}_audit"))
}

#[cfg(test)]
mod tests {
    use retryproof_core::Identity;

    use super::*;

    fn words() -> [String; 4] {
        ["release", "applied", "alice", "because"].map(str::to_owned)
    }

    fn row(
        scope: Option<&'static [u8]>,
        key: Option<&'static [u8]>,
        token: Option<i64>,
    ) -> Result<AuditEntry> {
        audit_entry(5, (scope, key, token), words())
    }

    #[test]
    fn ops_10_an_entry_comes_back_from_its_columns() {
        let id = Identity::of("pay", "k").expect("a valid identity");
        let about_a_record = |token| {
            AuditEntry::new("release", "alice", "because")
                .with_outcome("applied")
                .with_record(id.clone(), FencingToken::new(token))
        };
        for token in [0, 1, i64::MAX.unsigned_abs()] {
            let entry = about_a_record(token);
            let (scope, key, token) = audit_columns(&entry);
            // The stores' statements write the token 0 as NULL.
            let token = Some(token).filter(|token| *token != 0);
            let back = audit_entry(5, (scope, key, token), words()).expect("a readable row");
            assert_eq!(back, entry.with_time(5));
        }
        assert_eq!(audit_columns(&about_a_record(u64::MAX)).2, i64::MAX);
        let whole = row(None, None, None).expect("a readable row");
        assert_eq!((whole.record.as_ref(), whole.at_micros), (None, Some(5)));
        assert_eq!(audit_columns(&whole), (None, None, 0));
    }

    #[test]
    fn cmp_8_a_row_that_no_store_has_written_is_counted() {
        let mut rows = AuditRows::new(7);
        for bad in [
            row(Some(b"pay"), None, None),
            row(None, Some(b"k"), None),
            row(Some(b"\xff"), Some(b"k"), None),
            row(Some(b"pay"), Some(b"k"), Some(-1)),
            audit_entry(-1, (None, None, None), words()),
        ] {
            rows.add(1, bad).expect("counted");
        }
        rows.add(1, row(None, None, None)).expect("added");
        let page = rows.finish();
        assert_eq!((page.entries.len(), page.unreadable, page.next), (1, 5, None));
        assert!(AuditRows::new(1).add(1, Err(Error::unavailable("away"))).is_err());
    }

    #[test]
    fn ops_10_a_page_continues_before_its_last_row() {
        assert_eq!(
            [0, 1, 1_000, usize::MAX].map(|n| AuditRows::new(n).limit()),
            [1, 1, 1_000, 1_000]
        );
        assert_eq!(AuditRows::start(None).expect("the first page"), i64::MAX);
        let mut rows = AuditRows::new(2);
        rows.add(9, row(None, None, None)).expect("added");
        rows.add(8, Err(unreadable("verb"))).expect("counted");
        let next = rows.finish().next;
        assert_eq!(AuditRows::start(next.as_ref()).expect("the next page"), 8);
        for bytes in [&b""[..], b"1234567", b"123456789"] {
            let error = AuditRows::start(Some(&ScanCursor::new(bytes))).expect_err("a refusal");
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn ops_10_a_refusal_names_the_audit_table_and_what_to_do() {
        let of =
            |kind, is_denied| audit_refused(Error::new(kind, "other"), is_denied, "t").to_string();
        let missing = of(ErrorKind::Schema, false);
        assert!(missing.contains("migrate(url)") && missing.contains("t_audit"), "{missing}");
        let denied = of(ErrorKind::Unexpected, true);
        assert!(denied.contains("GRANT it INSERT and SELECT"), "{denied}");
        assert!(of(ErrorKind::Unavailable, false).contains("other"));
    }
}
