// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store with the records of a test, and the responses of its page.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use retryproof_admin::Access;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, HolderNote, Inspect, Peeked, RecordState,
    RecordSummary, ScanCursor, ScanPage, ScannedRecord, StoreProfile, StoreStats,
};
use retryproof_core::{
    Error, FencingToken, IdempotencyEngine, IdempotencyStore, Identity, OwnerId, Result, Scope,
    SharedStore,
};
use tower::ServiceExt as _;

/// A store that returns one record on each page of a scan. Clones share the records.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shelf(Arc<Mutex<Content>>);

#[derive(Debug, Default)]
struct Content {
    records: Vec<ScannedRecord>,
    unreadable: u64,
    calls: usize,
    scans: usize,
    page_takes: Duration,
    is_away: bool,
}

impl Shelf {
    pub(crate) fn put(&self, scope: &str, key: &str, summary: RecordSummary) -> Identity {
        let id = Identity::of(Scope::new(scope).unwrap(), key).unwrap();
        self.0.lock().unwrap().records.push(ScannedRecord::new(id.clone(), summary));
        id
    }

    /// Makes the first page of every later scan count this many records that cannot be read.
    pub(crate) fn spoil(&self, unreadable: u64) {
        self.0.lock().unwrap().unreadable = unreadable;
    }

    /// Returns how many calls the store has received.
    pub(crate) fn calls(&self) -> usize {
        self.0.lock().unwrap().calls
    }

    /// Returns how many scans have begun.
    pub(crate) fn scans(&self) -> usize {
        self.0.lock().unwrap().scans
    }

    /// Makes each later page of a scan take this long.
    pub(crate) fn slow_down(&self, page_takes: Duration) {
        self.0.lock().unwrap().page_takes = page_takes;
    }

    /// Makes every later call fail.
    pub(crate) fn go_away(&self) {
        self.0.lock().unwrap().is_away = true;
    }

    pub(crate) fn engine(&self) -> IdempotencyEngine {
        IdempotencyEngine::new(SharedStore::builder(self.clone()).with_inspect().build())
    }

    /// Returns the page, open to every visitor.
    pub(crate) fn page(&self) -> Router {
        retryproof_admin::router(&self.engine(), |_: &Parts| Access::ReadOnly)
    }

    fn called(&self) -> Result<()> {
        let mut content = self.0.lock().unwrap();
        content.calls += 1;
        if content.is_away { Err(unused()) } else { Ok(()) }
    }
}

fn unused() -> Error {
    Error::unavailable("the store is away")
}

impl IdempotencyStore for Shelf {
    async fn acquire(&self, _: &Identity, _: &AcquireRequest) -> Result<Acquired> {
        Err(unused())
    }

    async fn peek(&self, _: &Identity) -> Result<Peeked> {
        Err(unused())
    }

    async fn wait_for_change(&self, _: &Identity, _: FencingToken, _: Duration) -> Result<()> {
        Err(unused())
    }

    async fn extend(&self, _: &Identity, _: OwnerId, _: Duration) -> Result<FencedWrite> {
        Err(unused())
    }

    async fn complete(&self, _: &Identity, _: OwnerId, _: &Completion) -> Result<FencedWrite> {
        Err(unused())
    }

    async fn release(&self, _: &Identity, _: OwnerId) -> Result<FencedWrite> {
        Err(unused())
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("shelf")
    }
}

impl Inspect for Shelf {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        self.called()?;
        let content = self.0.lock().unwrap();
        Ok(content.records.iter().find(|one| one.id == *id).map(|one| one.summary.clone()))
    }

    async fn stats(&self) -> Result<StoreStats> {
        Err(unused())
    }

    async fn scan(&self, after: Option<&ScanCursor>, _: usize) -> Result<ScanPage> {
        self.called()?;
        let at = after.map_or(0, |after| usize::from(after.as_bytes()[0]));
        let page_takes = {
            let mut content = self.0.lock().unwrap();
            content.scans += usize::from(after.is_none());
            content.page_takes
        };
        tokio::time::sleep(page_takes).await;
        let content = self.0.lock().unwrap();
        let next = u8::try_from(at + 1).unwrap();
        let next = (at + 1 < content.records.len()).then(|| ScanCursor::new([next]));
        let unreadable = if at == 0 { content.unreadable } else { 0 };
        let records = content.records.get(at).cloned().into_iter().collect();
        Ok(ScanPage::new(records, unreadable, next))
    }
}

/// Returns a record in progress. Of its lease of 30 s, `left` seconds remain; `None` means that the
/// lease is over.
pub(crate) fn running(left: Option<u64>, held_for: u64, holder: &str) -> RecordSummary {
    let note = HolderNote::new(OwnerId::new(), Duration::from_secs(30), None, holder);
    let left = left.map(Duration::from_secs);
    RecordSummary::new(RecordState::InProgress, FencingToken::new(41), left, 0, false).with_grant(
        Some(Duration::from_secs(held_for)),
        Some(2),
        Some(note),
    )
}

/// Like [`running`], with a note that a newer version of the library wrote.
pub(crate) fn newer() -> RecordSummary {
    let owner = OwnerId::new();
    let mut note = HolderNote::new(owner, Duration::from_secs(30), None, "").as_bytes().to_vec();
    note[0] = u8::MAX;
    let note = HolderNote::of_owner(&note, owner);
    running(Some(29), 1, "").with_grant(None, None, note)
}

/// Creates a record that is kept for another hour.
pub(crate) fn complete() -> RecordSummary {
    let left = Some(Duration::from_secs(3_600));
    RecordSummary::new(RecordState::Complete, FencingToken::new(42), left, 210, true)
}

/// A response of the page, with its whole body.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn has(&self, part: &str) -> bool {
        self.body.contains(part)
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub(crate) async fn send(page: &Router, request: Request<Body>) -> Answer {
    let (head, body) = page.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.into()).unwrap();
    Answer { status: head.status, headers: head.headers, body }
}

pub(crate) async fn get(page: &Router, path: &str) -> Answer {
    send(page, Request::get(path).body(Body::empty()).unwrap()).await
}

/// Submits the form. The fields must already be escaped.
pub(crate) async fn find(page: &Router, form: &str) -> Answer {
    let request = Request::post("/records")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Body::from(form.to_owned()))
        .unwrap();
    send(page, request).await
}
