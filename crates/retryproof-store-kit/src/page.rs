// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ScanRows`] builds the pages of a scan over rows in the order of their keys (OPS-1).

use retryproof_core::store::{RecordSummary, ScanCursor, ScanPage, ScannedRecord};
use retryproof_core::{Error, ErrorKind, Identity, Key, Result, Scope};

use crate::errors::unreadable;

/// The largest number of rows that one page reads.
const MAX_ROWS: usize = 1_000;
/// The number of bytes before the scope in a cursor; they hold the scope's length.
const LENGTH: usize = 2;

/// One page of a scan, built from the rows that follow a scope and a key.
#[derive(Debug)]
pub struct ScanRows {
    limit: usize,
    read: usize,
    records: Vec<ScannedRecord>,
    unreadable: u64,
    last: Option<ScanCursor>,
}

impl ScanRows {
    /// Begins a page that reads `limit` rows, but at least 1 and at most 1,000.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let limit = limit.clamp(1, MAX_ROWS);
        Self { limit, read: 0, records: Vec::new(), unreadable: 0, last: None }
    }

    /// Returns how many rows to read.
    #[must_use]
    pub fn limit(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX)
    }

    /// Adds a row. `summary` is `None` for a row that counts as absent. A row that cannot be read
    /// adds only to the page's count of unreadable records.
    ///
    /// # Errors
    /// The error of `summary`, unless it is `Corrupt`.
    pub fn add(
        &mut self,
        scope: &[u8],
        key: &[u8],
        summary: Result<Option<RecordSummary>>,
    ) -> Result<()> {
        self.read += 1;
        self.last = Some(after(scope, key));
        match summary.and_then(|summary| summary.map(|s| scanned(scope, key, s)).transpose()) {
            Ok(record) => self.records.extend(record),
            Err(error) if error.kind() == ErrorKind::Corrupt => self.unreadable += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns the page. The page is the last one if fewer rows than the limit were added.
    #[must_use]
    pub fn finish(self) -> ScanPage {
        let next = self.last.filter(|_| self.read >= self.limit);
        ScanPage::new(self.records, self.unreadable, next)
    }

    /// Returns the scope and the key after which a page starts; both are empty for the first page.
    ///
    /// # Errors
    /// `Invalid` if the cursor does not have the form that [`finish`](Self::finish) writes.
    pub fn start(after: Option<&ScanCursor>) -> Result<(&[u8], &[u8])> {
        let Some(after) = after else { return Ok((&[], &[])) };
        let parts = || {
            let (length, rest) = after.as_bytes().split_first_chunk::<LENGTH>()?;
            rest.split_at_checked(u16::from_be_bytes(*length).into())
        };
        parts().ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                "this store did not return this cursor; scan again without a cursor",
            )
            .with("bytes", after.as_bytes().len())
        })
    }
}

fn after(scope: &[u8], key: &[u8]) -> ScanCursor {
    // The length fits, because no store's column for scopes is longer than 65,535 bytes.
    let length = u16::try_from(scope.len()).unwrap_or(u16::MAX).to_be_bytes();
    ScanCursor::new([&length[..], scope, key].concat())
}

fn scanned(scope: &[u8], key: &[u8], summary: RecordSummary) -> Result<ScannedRecord> {
    Ok(ScannedRecord::new(identity(scope, key)?, summary))
}

/// Returns the identity that a row's columns hold.
pub(crate) fn identity(scope: &[u8], key: &[u8]) -> Result<Identity> {
    let scope = str::from_utf8(scope).ok().and_then(|scope| Scope::new(scope).ok());
    let key = str::from_utf8(key).ok().and_then(|key| Key::new(key).ok());
    Ok(Identity::new(
        scope.ok_or_else(|| unreadable("scope"))?,
        key.ok_or_else(|| unreadable("key"))?,
    ))
}

#[cfg(test)]
mod tests {
    use retryproof_core::FencingToken;
    use retryproof_core::store::RecordState;

    use super::*;

    fn summary() -> Result<Option<RecordSummary>> {
        let token = FencingToken::new(1);
        Ok(Some(RecordSummary::new(RecordState::Complete, token, None, 0, false)))
    }

    #[test]
    fn ops_1_a_page_continues_after_its_last_row() {
        let mut rows = ScanRows::new(5);
        rows.add(b"pay", b"a:b", summary()).unwrap();
        rows.add(b"pay", b"absent", Ok(None)).unwrap();
        rows.add(b"pay", b"damaged", Err(unreadable("state"))).unwrap();
        rows.add(b"pay", b"\xff", summary()).unwrap();
        rows.add(b"\xff", b"last", summary()).unwrap();
        let page = rows.finish();
        assert_eq!((page.records.len(), page.unreadable), (1, 3));
        assert_eq!(page.records[0].id, Identity::of("pay", "a:b").unwrap());
        let start = ScanRows::start(page.next.as_ref()).unwrap();
        assert_eq!(start, (&b"\xff"[..], &b"last"[..]));
    }

    #[test]
    fn ops_1_a_page_with_fewer_rows_is_the_last() {
        let mut rows = ScanRows::new(0);
        assert_eq!(rows.limit(), 1);
        assert!(ScanRows::new(usize::MAX).limit() <= 1_000);
        assert!(ScanRows::new(2).finish().next.is_none());
        rows.add(b"pay", b"a", Ok(None)).unwrap();
        assert!(rows.finish().next.is_some());
    }

    #[test]
    fn ops_1_a_cursor_of_another_store_is_invalid() {
        assert_eq!(ScanRows::start(None).unwrap(), (&b""[..], &b""[..]));
        for bytes in [&b""[..], b"1", b"17", b"\0\x04pay"] {
            let error = ScanRows::start(Some(&ScanCursor::new(bytes))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bytes:?}");
        }
    }

    #[test]
    fn sto_5_an_error_of_the_store_is_no_unreadable_row() {
        let away = Error::unavailable("away");
        assert!(ScanRows::new(5).add(b"pay", b"a", Err(away)).is_err());
    }
}
