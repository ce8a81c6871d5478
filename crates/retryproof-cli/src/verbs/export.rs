// SPDX-License-Identifier: MIT OR Apache-2.0
//! `export`: all records as lines of JSON, with their results (OPS-6).

use retryproof::store::{Peeked, RecordState, RecordSummary, ScannedRecord};
use retryproof::{
    Error, ErrorKind, IdempotencyConfig, IdempotencyStore as _, Scope, SharedStore, connect_with,
};

use super::scan::{PAGE, Scan};
use crate::arguments::ScanArguments;
use crate::exit::{self, VerbError};
use crate::output::{remark, write_on};
use crate::record_line;
use crate::time::now_millis;

/// How many results are read at the same time.
const AT_ONCE: usize = 16;

/// How many records an export has written and left out.
#[derive(Debug, Default)]
pub(super) struct ExportCounts {
    pub(super) complete: u64,
    pub(super) in_progress: u64,
    expired: u64,
    unreadable: u64,
}

/// Prints the records of a store, or of one scope.
pub(crate) async fn export(
    arguments: &ScanArguments,
    show_keys: bool,
    config: &IdempotencyConfig,
) -> Result<u8, VerbError> {
    let scope = arguments.scope.clone().map(Scope::new).transpose()?;
    let store = connect_with(config).await?;
    let mut scan = Scan::new(&store, arguments.after.clone());
    let mut counts = ExportCounts::default();
    let end = records(&store, &mut scan, scope.as_ref(), &mut counts, write_on).await;
    if !matches!(end, Ok(false)) {
        remark(format_args!(
            "exported: {} complete, {} in progress; left out: {} expired",
            counts.complete, counts.in_progress, counts.expired
        ));
    }
    scan.remark_unreadable();
    if end.is_err() {
        scan.remark_end("the export is incomplete", show_keys);
    }
    end?;
    match counts.unreadable + scan.unreadable() {
        0 => Ok(exit::OK),
        missing => Err(VerbError::other(format!(
            "the export is incomplete, because this version of the command cannot read {missing} \
             of the records"
        ))),
    }
}

/// Passes the lines to `write`, which returns `false` if the reader has closed the pipe. Returns
/// whether the reader took all lines. If an export continues after an error, it may repeat lines of
/// the last page.
pub(super) async fn records(
    store: &SharedStore,
    scan: &mut Scan<'_>,
    scope: Option<&Scope>,
    counts: &mut ExportCounts,
    mut write: impl FnMut(&[u8]) -> Result<bool, VerbError>,
) -> Result<bool, VerbError> {
    loop {
        let page = scan.page(PAGE).await?;
        let now = now_millis();
        let selected =
            |record: &&ScannedRecord| scope.is_none_or(|scope| scope == record.id.scope());
        let records: Vec<_> = page.records.iter().filter(selected).cloned().collect();
        // Read the results in chunks, because a whole page of large results might need too much
        // memory.
        for some in records.chunks(AT_ONCE) {
            let mut lines = Vec::new();
            let reading: Vec<_> = some
                .iter()
                .map(|record| tokio::spawn(line(store.clone(), record.clone(), now)))
                .collect();
            let mut end = Ok(());
            for read in reading {
                let read = read.await.map_err(|error| VerbError::other(error.to_string()))?;
                match counted(read, counts) {
                    Ok(line) => lines.extend(line),
                    Err(error) => end = Err(error),
                }
            }
            if !write(&lines)? {
                return Ok(false);
            }
            end?;
        }
        if !scan.advance(&page) {
            return Ok(true);
        }
    }
}

/// The export of a record that the scan has found.
enum Exported {
    Complete(String),
    InProgress(String),
    Expired,
}

async fn line(store: SharedStore, record: ScannedRecord, now: u64) -> Result<Exported, Error> {
    let ScannedRecord { id, summary, .. } = record;
    let secret = store.profile().identity_secret;
    let written =
        |summary: &_, stored| record_line::written(&id, secret.as_ref(), summary, stored, now);
    if summary.state == RecordState::InProgress {
        return Ok(Exported::InProgress(written(&summary, None)));
    }
    if summary.remaining.is_none() {
        return Ok(Exported::Expired);
    }
    // The record may have changed since the scan found it.
    Ok(match store.peek(&id).await? {
        Peeked::Complete(stored) => {
            let envelope = record_line::envelope(&stored)
                .ok_or_else(|| Error::corrupt("the stored result cannot be read"))?;
            let stored = Some((&envelope, stored.fingerprint()));
            Exported::Complete(written(&summary, stored))
        }
        Peeked::Busy(lease) => {
            let left = Some(lease.remaining);
            let running = RecordSummary::new(RecordState::InProgress, lease.token, left, 0, false);
            Exported::InProgress(written(&running, None))
        }
        Peeked::Absent => Exported::Expired,
    })
}

/// Counts a record, and returns its line with a newline. A record that cannot be read does not end
/// the export (CMP-8).
fn counted(read: Result<Exported, Error>, counts: &mut ExportCounts) -> Result<Vec<u8>, VerbError> {
    let line = match read {
        Ok(Exported::Complete(line)) => {
            counts.complete += 1;
            line
        }
        Ok(Exported::InProgress(line)) => {
            counts.in_progress += 1;
            line
        }
        Ok(Exported::Expired) => {
            counts.expired += 1;
            return Ok(Vec::new());
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            counts.unreadable += 1;
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    Ok(format!("{line}\n").into_bytes())
}
