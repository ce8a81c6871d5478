// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ls`, `stuck` and `stats --by-scope`: verbs that read pages of all records (OPS-1, OPS-2).

use std::collections::HashSet;
use std::io::IsTerminal as _;
use std::ops::ControlFlow;

use retryproof::store::{
    RecordFilter, RecordState, RecordSummary, ScanPage, ScannedRecord, ScopeStats,
};
use retryproof::{IdempotencyConfig, IdempotencyStore as _, Scope, SharedStore, connect_with};
use serde_json::json;

use super::get::{Timing, as_json, holder};
use crate::arguments::{ListArguments, ListedState};
use crate::exit::{self, VerbError};
use crate::output::{Printer, remark};
use crate::time::{millis, spoken};

/// How many records a page has.
const PAGE: usize = 1_000;
/// After how many pages the progress is shown.
const PAGES_PER_REMARK: u64 = 100;

/// Lists records that a filter selects.
pub(crate) async fn list(
    arguments: &ListArguments,
    show_keys: bool,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let mut filter = RecordFilter::new();
    if let Some(scope) = &arguments.scope {
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
    let selects = |record: &ScannedRecord| filter.selects(record);
    let found = found(&store, arguments.limit, selects).await?;
    print_records(&found, show_keys, *print)
}

/// Lists the records in progress that no heartbeat keeps.
pub(crate) async fn stuck(
    scope: Option<&str>,
    show_keys: bool,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let scope = scope.map(|scope| Scope::new(scope.to_owned())).transpose()?;
    let store = connect_with(config).await?;
    let selects = |record: &ScannedRecord| {
        scope.as_ref().is_none_or(|scope| scope == record.id.scope()) && is_stuck(&record.summary)
    };
    let found = found(&store, usize::MAX, selects).await?;
    print_records(&found, show_keys, *print)
}

/// Counts the records of each scope.
pub(crate) async fn stats_by_scope(
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let store = connect_with(config).await?;
    let mut stats = ScopeStats::new();
    each_page(&store, |page| {
        stats.add(page);
        ControlFlow::Continue(())
    })
    .await?;
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
    let header = ["scope", "in progress", "lease over", "complete", "expired", "bytes", "oldest"];
    print.list(header, &rows, &values)?;
    Ok(exit::OK)
}

/// Whether a record in progress misses its heartbeats: its lease is over, or has less than half of
/// its length left. Each heartbeat extends the lease to its full length.
fn is_stuck(record: &RecordSummary) -> bool {
    let beats_are_missing = match (Timing::of(record).lease, record.remaining) {
        (Some(lease), Some(left)) => left < lease / 2,
        (None, Some(_)) => false,
        (_, None) => true,
    };
    record.state == RecordState::InProgress && beats_are_missing
}

/// The selected records, at most `limit`, each once.
async fn found(
    store: &SharedStore,
    limit: usize,
    selects: impl Fn(&ScannedRecord) -> bool,
) -> Result<Vec<ScannedRecord>, VerbError> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let mut is_cut = false;
    each_page(store, |page| {
        for record in page.records.iter().filter(|record| selects(record)) {
            // Redis may return a record twice.
            if seen.contains(&record.id) {
                continue;
            }
            if found.len() >= limit {
                is_cut = true;
                return ControlFlow::Break(());
            }
            seen.insert(record.id.clone());
            found.push(record.clone());
        }
        ControlFlow::Continue(())
    })
    .await?;
    if is_cut {
        remark(format_args!(
            "there are more than {limit} such records; raise `--limit` to see more"
        ));
    }
    Ok(found)
}

/// Reads all records, and says how many could not be read.
async fn each_page(
    store: &SharedStore,
    mut add: impl FnMut(&ScanPage) -> ControlFlow<()>,
) -> Result<(), VerbError> {
    let shows_progress = std::io::stderr().is_terminal();
    let (mut after, mut pages, mut unreadable) = (None, 0_u64, 0);
    loop {
        let Some(page) = store.scan(after.as_ref(), PAGE).await? else {
            let name = store.profile().name;
            let message = format!("the {name} store cannot list records");
            return Err(VerbError::new(exit::REFUSED, message));
        };
        unreadable += page.unreadable;
        pages += 1;
        if shows_progress && pages.is_multiple_of(PAGES_PER_REMARK) {
            remark(format_args!("{pages} pages of records read"));
        }
        let goes_on = add(&page).is_continue();
        match page.next {
            Some(next) if goes_on => after = Some(next),
            _ => break,
        }
    }
    if unreadable > 0 {
        remark(format_args!("{unreadable} records cannot be read by this version"));
    }
    Ok(())
}

fn print_records(
    found: &[ScannedRecord],
    show_keys: bool,
    print: Printer,
) -> Result<u8, VerbError> {
    let rows: Vec<_> = found.iter().map(|record| row(record, show_keys)).collect();
    let values: Vec<_> =
        found.iter().map(|record| as_json(&record.summary, &record.id, show_keys)).collect();
    let header = ["scope", "key", "state", "holder", "granted", "then", "token"];
    print.list(header, &rows, &values)?;
    Ok(exit::OK)
}

fn row(record: &ScannedRecord, show_keys: bool) -> [String; 7] {
    let ScannedRecord { id, summary, .. } = record;
    let key = if show_keys { id.key().expose().to_owned() } else { id.key().to_string() };
    let (state, then) = match (summary.state, summary.remaining) {
        (RecordState::InProgress, Some(left)) => {
            ("in progress", format!("free in {}", spoken(left)))
        }
        (RecordState::InProgress, None) => ("lease over", "the next call takes over".to_owned()),
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
    use std::time::Duration;

    use retryproof::store::HolderNote;
    use retryproof::{FencingToken, OwnerId};

    use super::*;

    #[test]
    fn ops_2_a_record_is_stuck_if_half_of_its_lease_is_over() {
        let record = |state, left: Option<u64>, lease: Option<u64>| {
            let left = left.map(Duration::from_secs);
            let note = lease.map(|lease| {
                HolderNote::new(OwnerId::new(), Duration::from_secs(lease), None, "pod")
            });
            RecordSummary::new(state, FencingToken::new(7), left, 0, false)
                .with_grant(None, None, note)
        };
        let running = RecordState::InProgress;
        assert!(is_stuck(&record(running, None, None)));
        assert!(is_stuck(&record(running, Some(14), Some(30))));
        assert!(!is_stuck(&record(running, Some(15), Some(30))));
        assert!(!is_stuck(&record(running, Some(1), None)), "the length of the lease is unknown");
        assert!(!is_stuck(&record(RecordState::Complete, None, None)));
    }
}
