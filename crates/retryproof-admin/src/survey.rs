// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Survey`]: the findings of a scan of all records. All viewers of the page share one scan, so
//! that reloading the page does not multiply the load on the store (OPS-9).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use retryproof_core::IdempotencyEngine;
use retryproof_core::clock::{Clock as _, Instant, SystemClock};
use retryproof_core::store::{ScanPage, ScannedRecord, ScopeStats};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::find::{CANNOT_INSPECT, PAGE, in_time};

/// The maximum number of stuck keys that are shown.
pub(crate) const SHOWN: usize = 50;
/// How long a request waits for a running scan. After that, the page shows what was found so far.
const PATIENCE: Duration = Duration::from_secs(2);
/// The shortest time from the end of a scan to the start of the next one.
const PAUSE: Duration = Duration::from_secs(2);
/// The pause after a scan is at least the scan's duration times this factor.
const PAUSE_FACTOR: u32 = 10;

/// What a scan has found so far.
#[derive(Clone)]
pub(crate) struct Survey {
    began: Instant,
    pub(crate) took: Duration,
    pub(crate) records: u64,
    pub(crate) scopes: ScopeStats,
    /// The number of records whose holder has a newer version of this library.
    pub(crate) newer: u64,
    /// The number of stuck keys.
    pub(crate) stuck: u64,
    /// The stuck keys with the oldest grants: at least [`SHOWN`] of them, if there are that many.
    oldest: Vec<ScannedRecord>,
    /// Whether all records were read.
    pub(crate) is_whole: bool,
    /// Why the scan ended early.
    pub(crate) error: Option<String>,
}

impl Survey {
    fn new(began: Instant) -> Self {
        Self {
            began,
            took: Duration::ZERO,
            records: 0,
            scopes: ScopeStats::new(),
            newer: 0,
            stuck: 0,
            oldest: Vec::new(),
            is_whole: false,
            error: None,
        }
    }

    fn add(&mut self, page: &ScanPage) {
        self.records += page.records.len() as u64;
        self.scopes.add(page);
        let holders = page.records.iter().filter_map(|record| record.summary.holder.as_ref());
        self.newer += holders.filter(|note| note.is_newer()).count() as u64;
        for record in page.records.iter().filter(|record| record.summary.is_stuck()) {
            self.stuck += 1;
            // A scan of Redis can return a record twice.
            if !self.oldest.iter().any(|known| known.id == record.id) {
                self.oldest.push(record.clone());
            }
            if self.oldest.len() >= 2 * SHOWN {
                sort(&mut self.oldest);
                self.oldest.truncate(SHOWN);
            }
        }
    }

    /// Returns the stuck keys with the oldest grants, at most [`SHOWN`].
    pub(crate) fn oldest(&self) -> Vec<ScannedRecord> {
        let mut oldest = self.oldest.clone();
        sort(&mut oldest);
        oldest.truncate(SHOWN);
        oldest
    }

    /// Returns the time since the scan ended, or since it read its latest page.
    pub(crate) fn age(&self) -> Duration {
        SystemClock.now().saturating_duration_since(self.began + self.took)
    }
}

/// Sorts the oldest records first. Records of unknown age come last.
fn sort(records: &mut [ScannedRecord]) {
    records.sort_by_key(|record| std::cmp::Reverse(record.summary.granted_ago));
}

/// Scans the store when the page is shown, and keeps the newest scan.
pub(crate) struct Surveys {
    engine: IdempotencyEngine,
    newest: Mutex<Option<watch::Receiver<Survey>>>,
}

impl Surveys {
    pub(crate) fn new(engine: &IdempotencyEngine) -> Self {
        Self { engine: engine.clone(), newest: Mutex::new(None) }
    }

    /// Returns what the newest scan has found. Starts a scan if there is none, or if the newest one
    /// is old.
    pub(crate) async fn current(&self) -> Survey {
        let mut newest = self.newest();
        // The sender is dropped when the scan ends, whether or not the scan succeeds. `changed`
        // then returns an error, which ends the loop.
        let ended = async { while newest.changed().await.is_ok() {} };
        let _ = timeout(PATIENCE, ended).await;
        newest.borrow().clone()
    }

    fn newest(&self) -> watch::Receiver<Survey> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*newest {
            Some(survey) if !is_old(survey) => survey.clone(),
            _ => newest.insert(scan(self.engine.clone())).clone(),
        }
    }
}

fn is_old(survey: &watch::Receiver<Survey>) -> bool {
    let mut receiver = survey.clone();
    receiver.mark_unchanged();
    let has_ended = receiver.has_changed().is_err();
    let survey = survey.borrow();
    has_ended && survey.age() >= survey.took.saturating_mul(PAUSE_FACTOR).max(PAUSE)
}

/// Reads all records in a task, so that the scan does not depend on the request that started it.
fn scan(engine: IdempotencyEngine) -> watch::Receiver<Survey> {
    let began = SystemClock.now();
    let (survey, receiver) = watch::channel(Survey::new(began));
    drop(tokio::spawn(async move {
        let mut after = None;
        loop {
            let page = in_time(&engine, engine.store().scan(after.as_ref(), PAGE)).await;
            let next = page.as_ref().ok().and_then(|page| page.as_ref()?.next.clone());
            survey.send_modify(|survey| {
                survey.took = SystemClock.now().saturating_duration_since(began);
                match &page {
                    Ok(Some(page)) => {
                        survey.add(page);
                        survey.is_whole = page.next.is_none();
                    }
                    Ok(None) => {
                        survey.error = Some(CANNOT_INSPECT.to_owned());
                    }
                    Err(error) => survey.error = Some(error.to_string()),
                }
            });
            if next.is_none() {
                return;
            }
            after = next;
            tokio::task::yield_now().await;
        }
    }));
    receiver
}

#[cfg(test)]
mod tests {
    use retryproof_core::store::{RecordState, RecordSummary};
    use retryproof_core::{FencingToken, Identity, Scope};

    use super::*;

    fn stuck(key: u64, granted_ago: Option<u64>) -> ScannedRecord {
        let id = Identity::of(Scope::new("pay").unwrap(), format!("k-{key}")).unwrap();
        let summary =
            RecordSummary::new(RecordState::InProgress, FencingToken::new(1), None, 0, false);
        let ago = granted_ago.map(Duration::from_secs);
        ScannedRecord::new(id, summary.with_grant(ago, None, None))
    }

    #[test]
    fn ops_9_the_oldest_stuck_keys_are_kept_and_each_is_shown_once() {
        let mut survey = Survey::new(SystemClock.now());
        for key in 0..500 {
            // Add the records out of order, and add each record twice.
            let record = stuck(key, (key != 7).then_some(key * 7 % 500));
            survey.add(&ScanPage::new(vec![record.clone(), record], 0, None));
        }
        let ages: Vec<_> = survey.oldest().iter().map(|one| one.summary.granted_ago).collect();
        let expected: Vec<_> = (450..500).rev().map(|s| Some(Duration::from_secs(s))).collect();
        assert_eq!(ages, expected);
        assert_eq!(survey.records, 1_000);
        let mut few = Survey::new(SystemClock.now());
        few.add(&ScanPage::new(vec![stuck(1, None), stuck(2, Some(3))], 0, None));
        let ages: Vec<_> = few.oldest().iter().map(|one| one.summary.granted_ago).collect();
        assert_eq!(ages, [Some(Duration::from_secs(3)), None], "an unknown age comes last");
    }
}
