// SPDX-License-Identifier: MIT OR Apache-2.0
//! An operator pages through all records of a store. Other subjects may share the store, so each
//! case looks only at its own records.

use std::collections::BTreeMap;

use retryproof_core::Identity;
use retryproof_core::store::{
    FencedWrite, RecordFilter, RecordState, RecordSummary, ScanCursor, ScanPage, SharedStore,
};

use super::caller::{LONG, StoreCaller, granted};
use crate::subject::Subject;

/// How many records a case writes.
const RECORDS: usize = 30;

impl Subject {
    /// Returns a small page size, or a large one if other subjects' records would fill too many
    /// small pages.
    async fn page(&self) -> usize {
        let stats = self.store().stats().await.expect("the stats should be readable");
        let records = stats.expect("the store should support inspection").records;
        if records < 1_000 { 7 } else { 500 }
    }

    /// Returns the pages of a scan.
    fn pages(&self, limit: usize) -> Pages {
        Pages { store: self.store().clone(), limit, after: None, is_over: false }
    }

    /// Writes [`RECORDS`] records in two scopes. A third of them is in progress, a third has a
    /// lease that has ended, and a third is complete.
    async fn fill(&self) -> BTreeMap<String, StoreCaller> {
        let mut callers = BTreeMap::new();
        for at in 0..RECORDS {
            let scope = if at % 2 == 0 { "even" } else { "odd" };
            let holder = self.caller(&self.identity(scope, &format!("k{at}")));
            let lease = if at % 3 == 1 { self.short() } else { LONG };
            granted(holder.acquire(lease).await);
            if at % 3 == 2 {
                assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
            }
            callers.insert(name(&holder.id), holder);
        }
        // The dead lease of `k28` was granted last. When this lease has ended, the other dead
        // leases have ended too.
        let dead = self.identity("even", "k28");
        self.expire(&dead, self.short()).await;
        callers
    }
}

/// The pages of a scan, one after the other.
struct Pages {
    store: SharedStore,
    limit: usize,
    after: Option<ScanCursor>,
    is_over: bool,
}

impl Pages {
    async fn next(&mut self) -> Option<ScanPage> {
        if self.is_over {
            return None;
        }
        let page = self.store.scan(self.after.as_ref(), self.limit).await;
        let page = page.expect("the scan should succeed");
        let page = page.expect("the store should support inspection");
        // Rebuild the cursor from its bytes, because a later process must be able to continue the
        // scan from these bytes.
        self.after = page.next.as_ref().map(|next| ScanCursor::new(next.as_bytes()));
        self.is_over = page.next.is_none();
        Some(page)
    }
}

fn name(id: &Identity) -> String {
    format!("{}/{}", id.scope().as_str(), id.key().expose())
}

/// A scan returns every record, expired or not, with the same description as an inspection of that
/// record.
pub async fn ops_1_a_scan_finds_every_record(s: &Subject) {
    let callers = s.fill().await;
    let mut seen = BTreeMap::<String, RecordSummary>::new();
    let mut pages = s.pages(s.page().await);
    while let Some(page) = pages.next().await {
        for record in &page.records {
            if callers.contains_key(&name(&record.id)) {
                seen.insert(name(&record.id), record.summary.clone());
            }
        }
    }
    assert_eq!(
        seen.len(),
        RECORDS,
        "the scan should find all {RECORDS} records, but found {:?}",
        seen.keys()
    );
    for (name, scanned) in &seen {
        let looked = s.store().get(&callers[name].id).await.expect("the inspection should succeed");
        let looked = looked.expect("the record should exist");
        let facts = |of: &RecordSummary| {
            let (fingerprint, holder) = (of.has_fingerprint, of.holder.clone());
            (of.state, of.token, of.value_bytes, fingerprint, of.takeovers, holder)
        };
        assert_eq!(
            facts(scanned),
            facts(&looked),
            "a scan and a `get` of {name} should show the same"
        );
    }
}

/// A scan returns every record that exists during the whole scan, even if other records are deleted
/// between two pages.
pub async fn ops_1_deletions_hide_no_other_record(s: &Subject) {
    let callers = s.fill().await;
    let (mut seen, mut gone) = (Vec::new(), 0);
    let mut pages = s.pages(s.page().await);
    while let Some(page) = pages.next().await {
        for record in &page.records {
            let Some(caller) = callers.get(&name(&record.id)) else { continue };
            if !seen.contains(&name(&record.id)) {
                seen.push(name(&record.id));
            }
            if record.summary.state == RecordState::InProgress
                && caller.release().await == FencedWrite::Applied
            {
                gone += 1;
            }
        }
    }
    assert!(gone > 0, "the case should have deleted records");
    assert_eq!(
        seen.len(),
        RECORDS,
        "the scan should find all {RECORDS} records, but found {seen:?}"
    );
}

/// A scan with any limit, even 0, finds the record and comes to an end. If other subjects have many
/// records, the case stops a scan in small pages early.
pub async fn ops_1_every_limit_leads_to_the_end(s: &Subject) {
    granted(s.caller(&s.id("k")).acquire(LONG).await);
    for (limit, most) in [(0, 2_000), (1, 2_000), (usize::MAX, usize::MAX)] {
        let mut found = false;
        let mut pages = s.pages(limit);
        let mut read = 0;
        while read < most
            && let Some(page) = pages.next().await
        {
            read += 1;
            found |= page.records.iter().any(|record| record.id == s.id("k"));
        }
        assert!(found || read == most, "a scan in pages of {limit} should find the record");
    }
}

/// A scan counts a record that it cannot read, and continues after it.
pub async fn ops_1_an_unreadable_record_is_counted(s: &Subject) {
    let callers = s.fill().await;
    let spoilt = s.identity("even", "k2");
    s.corrupt(&spoilt).await.expect("the store under test should offer a way to damage a record");
    let (mut seen, mut unreadable) = (Vec::new(), 0);
    let mut pages = s.pages(s.page().await);
    while let Some(page) = pages.next().await {
        unreadable += page.unreadable;
        for record in &page.records {
            let name = name(&record.id);
            if callers.contains_key(&name) && !seen.contains(&name) {
                seen.push(name);
            }
        }
    }
    assert!(unreadable >= 1, "the damaged record should be counted");
    assert!(
        !seen.contains(&name(&spoilt)) && seen.len() == RECORDS - 1,
        "the scan should find all records but the damaged one: {seen:?}"
    );
}

/// Filters apply to every page, and a scope's counts cover only the records of that scope.
pub async fn ops_2_records_are_filtered_and_counted_by_scope(s: &Subject) {
    let callers = s.fill().await;
    let of = s.identity("odd", "k1");
    let filter =
        RecordFilter::new().with_scope(of.scope().clone()).with_state(RecordState::Complete);
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = s.store().scan_filtered(&filter, after.as_ref(), s.page().await).await;
        let page = page.expect("the scan should succeed");
        let page = page.expect("the store should support inspection");
        found.extend(page.records.iter().map(|record| name(&record.id)));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    found.sort_unstable();
    found.dedup();
    // Records 5, 11, 17, 23 and 29 are complete and belong to the scope for odd numbers.
    assert_eq!(found.len(), 5, "the filter should select 5 records: {found:?}");
    assert!(
        found.iter().all(|name| callers.contains_key(name)),
        "the filter should select only records of this case: {found:?}"
    );

    let stats = s.store().stats_by_scope().await.expect("counting by scope should succeed");
    let stats = stats.expect("the store should support inspection");
    let (_, counts) = stats
        .scopes()
        .find(|(scope, _)| *scope == of.scope().as_str())
        .expect("the scope should be counted");
    // A scan is allowed to return a record twice, so the counts can be higher.
    assert!(
        counts.in_progress >= 10 && counts.complete >= 5,
        "the scope should have at least 10 records in progress and 5 complete ones: {counts:?}"
    );
    assert!(
        counts.abandoned >= 5 && counts.value_bytes > 0,
        "the scope should have at least 5 dead leases, and values with bytes: {counts:?}"
    );
}
