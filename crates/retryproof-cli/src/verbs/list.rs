// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ls`, `stuck` and `stats --by-scope`: verbs that read records page by page (OPS-1, OPS-2).

use std::cell::Cell;
use std::collections::HashSet;

use retryproof::store::{RecordFilter, RecordState, ScannedRecord, ScopeStats};
use retryproof::{IdempotencyConfig, Scope, connect_with};
use serde_json::json;

use super::get::{as_json, holder};
use super::scan::{PAGE, Scan};
use crate::arguments::{ListArguments, ListedState, ScanArguments};
use crate::exit::{self, VerbError};
use crate::output::{Printer, remark};
use crate::time::{millis, now_millis, spoken};

/// Lists records that a filter selects.
pub(crate) async fn list(
    arguments: &ListArguments,
    show_keys: bool,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let mut filter = RecordFilter::new();
    if let Some(scope) = &arguments.scan.scope {
        filter = filter.with_scope(Scope::new(scope.as_str())?);
    }
    if let Some(state) = arguments.state {
        filter = filter.with_state(match state {
            ListedState::InProgress => RecordState::InProgress,
            ListedState::Complete => RecordState::Complete,
        });
    }
    if let Some(age) = arguments.older_than {
        filter = filter.with_older_than(age);
    }
    if let Some(holder) = &arguments.holder {
        filter = filter.with_holder(holder.as_str());
    }
    let store = connect_with(config).await?;
    let mut scan = Scan::new(&store, arguments.scan.after.clone());
    let found = found(&mut scan, arguments.limit, |record| filter.selects(record)).await;
    print_found(&found, &scan, show_keys, *print)?;
    if found.is_cut {
        scan.remark_end(&format!("the list ends at `--limit` {}", arguments.limit), show_keys);
    }
    found.end.map(|()| exit::OK)
}

/// Lists the records in progress whose heartbeats are missing.
pub(crate) async fn stuck(
    arguments: &ScanArguments,
    show_keys: bool,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let scope = arguments.scope.clone().map(Scope::new).transpose()?;
    let store = connect_with(config).await?;
    // On Redis, a scan can return a record twice, and it is then counted twice.
    let in_progress = Cell::new(0_u64);
    let selects = |record: &ScannedRecord| {
        if scope.as_ref().is_some_and(|scope| scope != record.id.scope()) {
            return false;
        }
        if record.summary.state == RecordState::InProgress {
            in_progress.set(in_progress.get() + 1);
        }
        record.summary.is_stuck()
    };
    let mut scan = Scan::new(&store, arguments.after.clone());
    let found = found(&mut scan, usize::MAX, selects).await;
    print_found(&found, &scan, show_keys, *print)?;
    if found.records.is_empty() && found.end.is_ok() {
        remark(format_args!(
            "no stuck keys; records in progress: {} (a dead holder is listed only after half of \
             its lease)",
            in_progress.get()
        ));
    }
    found.end.map(|()| exit::OK)
}

/// Counts the records of each scope.
pub(crate) async fn stats_by_scope(
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let store = connect_with(config).await?;
    let (mut stats, mut scan) = (ScopeStats::new(), Scan::new(&store, None));
    loop {
        let page = scan.page(PAGE).await?;
        stats.add(&page);
        if !scan.advance(&page) {
            break;
        }
    }
    scan.remark_unreadable();
    let (mut rows, mut values) = (Vec::new(), Vec::new());
    for (scope, counts) in stats.scopes() {
        rows.push([
            scope.to_owned(),
            counts.in_progress.to_string(),
            counts.abandoned.to_string(),
            counts.complete.to_string(),
            counts.expired.to_string(),
            counts.value_bytes.to_string(),
            counts.oldest.map_or_else(|| "unknown".to_owned(), spoken),
        ]);
        values.push(json!({
            "scope": scope,
            "in_progress": counts.in_progress,
            "lease_over": counts.abandoned,
            "complete": counts.complete,
            "expired": counts.expired,
            "value_bytes": counts.value_bytes,
            "oldest_ms": counts.oldest.map(millis),
        }));
    }
    let header =
        ["scope", "in progress", "lease over", "complete", "expired", "value bytes", "oldest"];
    print.list(header, &rows, &values)?;
    Ok(exit::OK)
}

/// The records that a scan has selected.
struct Selection {
    records: Vec<ScannedRecord>,
    /// Whether the scan stopped at the limit.
    is_cut: bool,
    /// The error that ended the scan early, if any.
    end: Result<(), VerbError>,
}

/// Returns the selected records without duplicates, at most `limit` of them. The scan stops after
/// the last of these records, so another scan can continue there. On Redis there may be a few more
/// than `limit`, because the server decides how many records a page has.
async fn found(
    scan: &mut Scan<'_>,
    limit: usize,
    selects: impl Fn(&ScannedRecord) -> bool,
) -> Selection {
    let mut found = Selection { records: Vec::new(), is_cut: false, end: Ok(()) };
    // Remember the records that were seen, because a scan of Redis can return the same record
    // twice.
    let mut seen = HashSet::new();
    let mut size = PAGE;
    loop {
        let page = match scan.page(size).await {
            Ok(page) => page,
            Err(error) => {
                found.end = Err(error);
                return found;
            }
        };
        let selected: Vec<_> = page
            .records
            .iter()
            .filter(|record| selects(record) && !seen.contains(&record.id))
            .collect();
        let room = limit.saturating_sub(found.records.len()).max(1);
        if selected.len() > room && size > room {
            // The page has more matching records than the limit allows. Read a smaller page
            // instead, because the next page can start only after the last record of a whole page.
            size = room;
            continue;
        }
        for record in selected {
            if seen.insert(record.id.clone()) {
                found.records.push(record.clone());
            }
        }
        if !scan.advance(&page) {
            return found;
        }
        if found.records.len() >= limit {
            found.is_cut = true;
            return found;
        }
    }
}

/// Prints the records on stdout, and remarks about the scan on stderr.
fn print_found(
    found: &Selection,
    scan: &Scan<'_>,
    show_keys: bool,
    print: Printer,
) -> Result<(), VerbError> {
    if found.end.as_ref().is_err_and(|error| error.code == exit::USAGE) {
        // The argument of `--after` is not a position of this store, so nothing was scanned.
        return Ok(());
    }
    let rows = found.records.iter().map(|record| row(record, show_keys));
    let now = now_millis();
    let as_json = |record: &ScannedRecord| as_json(&record.summary, &record.id, show_keys, now);
    let values = found.records.iter().map(as_json);
    let header = ["scope", "key", "state", "holder", "granted", "then", "token"];
    print.long_list(header, rows, values)?;
    scan.remark_unreadable();
    if found.end.is_err() {
        scan.remark_end("the list is incomplete", show_keys);
    }
    Ok(())
}

fn row(record: &ScannedRecord, show_keys: bool) -> [String; 7] {
    let ScannedRecord { id, summary, .. } = record;
    let key = if show_keys { id.key().expose().to_owned() } else { id.key().to_string() };
    let (state, then) = match (summary.state, summary.remaining) {
        (RecordState::InProgress, Some(left)) => {
            ("in progress", format!("free in {}", spoken(left)))
        }
        (RecordState::InProgress, None) => {
            let ended = summary.ended_ago.map(|ago| format!(" (lease ended {} ago)", spoken(ago)));
            ("lease over", format!("the next call takes over{}", ended.unwrap_or_default()))
        }
        (RecordState::Complete, Some(left)) => ("complete", format!("kept for {}", spoken(left))),
        (RecordState::Complete, None) => {
            ("expired", "the next call runs the work again".to_owned())
        }
    };
    let granted = summary.granted_ago.map(|ago| format!("{} ago", spoken(ago)));
    [
        id.scope().as_str().to_owned(),
        key,
        state.to_owned(),
        holder(summary),
        granted.unwrap_or_else(|| "unknown".to_owned()),
        then,
        summary.token.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use retryproof::{MemoryStore, SharedStore};

    use super::*;

    #[tokio::test]
    async fn ops_2_an_interrupted_list_keeps_what_it_found() {
        let store = SharedStore::builder(MemoryStore::new()).with_inspect().build();
        let mut scan = Scan::new(&store, None);
        scan.interrupt().send();
        let found = found(&mut scan, 9, |_| true).await;
        assert!(found.records.is_empty() && !found.is_cut);
        assert_eq!(found.end.unwrap_err().code, exit::INTERRUPTED);
    }
}
