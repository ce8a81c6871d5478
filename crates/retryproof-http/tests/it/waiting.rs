// SPDX-License-Identifier: MIT OR Apache-2.0
//! What duplicates keep in memory while they wait (ACQ-13).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use bytes::Bytes;
use http::StatusCode;
use retryproof_http::{
    FIRST_CUSTOM_ALGORITHM, FingerprintRequest, IdempotencyFilter, Policy, RequestParts,
};
use tokio::time::sleep;

use crate::world::{Answer, filter_with, post, send};

/// Bytes of a request body that count how many such bytes exist.
struct Counted {
    bytes: Vec<u8>,
    live: Arc<AtomicUsize>,
}

impl Counted {
    fn body(length: usize, live: &Arc<AtomicUsize>) -> Body {
        live.fetch_add(length, Ordering::SeqCst);
        Body::from(Bytes::from_owner(Self { bytes: vec![b'x'; length], live: Arc::clone(live) }))
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.live.fetch_sub(self.bytes.len(), Ordering::SeqCst);
    }
}

/// Gives every request the same fingerprint, so that the tests do not hash a gigabyte.
#[derive(Debug)]
struct Same;

impl FingerprintRequest for Same {
    fn algorithm(&self) -> u8 {
        FIRST_CUSTOM_ALGORITHM
    }

    fn digest(&self, _: &RequestParts<'_>) -> [u8; 32] {
        [0; 32]
    }
}

/// Sends a first request that takes 5 s, and then `duplicates` copies of it, each with a body of
/// `length` bytes. Returns all answers, and how many bytes of bodies existed after every duplicate
/// had looked at the record.
async fn storm(
    max_waiting_bytes: Option<usize>,
    duplicates: usize,
    length: usize,
) -> (Vec<Answer>, usize) {
    let filter = filter_with(|config| {
        config.max_waiting_bytes = max_waiting_bytes.unwrap_or(config.max_waiting_bytes);
    });
    let filter = IdempotencyFilter::builder(filter.engine().clone());
    let filter = filter.callers_share_keys().fingerprint(Same).build().unwrap();
    let policy = Policy::new("slow")
        .with_lease(Duration::from_secs(30))
        .with_wait_timeout(Duration::from_secs(60));
    let handler = || async {
        sleep(Duration::from_secs(5)).await;
        "done"
    };
    let app = Router::new().route("/pay", any(handler).layer(filter.guard(policy)));
    let live = Arc::<AtomicUsize>::default();
    let mut calls = Vec::new();
    for _ in 0..=duplicates {
        let (app, body) = (app.clone(), Counted::body(length, &live));
        calls.push(tokio::spawn(async move { send(&app, post("/pay", "k", body)).await }));
        // Give the call time to begin its wait or to be answered.
        sleep(Duration::from_millis(1)).await;
    }
    let kept = live.load(Ordering::SeqCst);
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap());
    }
    assert_eq!(live.load(Ordering::SeqCst), 0, "all are gone in the end");
    (answers, kept)
}

#[tokio::test(start_paused = true)]
async fn acq_13_nine_hundred_waiters_with_a_mebibyte_each_do_not_keep_nine_hundred() {
    const MIB: usize = 1 << 20;
    let (answers, kept) = storm(None, 900, MIB).await;
    assert!(kept <= 65 * MIB, "64 waiters and the holder: {} MiB", kept / MIB);
    let done = answers.iter().filter(|answer| answer.status == StatusCode::OK).count();
    assert_eq!(done, 65, "those that waited have the result");
    let refused = answers.iter().filter(|answer| answer.status == StatusCode::CONFLICT);
    assert!(
        refused
            .clone()
            .all(|answer| answer.code() == "in-flight" && answer.header("retry-after").is_some())
    );
    assert_eq!(refused.count(), 900 + 1 - 65);
}

#[tokio::test(start_paused = true)]
async fn acq_13_a_duplicate_without_a_body_waits_whatever_others_keep() {
    let (answers, kept) = storm(Some(10), 20, 0).await;
    assert!(answers.iter().all(|answer| answer.text() == "done"));
    assert_eq!(kept, 0);
    // The bodies of two duplicates fill the limit of 10 bytes, so the third duplicate gets the
    // answer `in-flight` at once.
    let (answers, _) = storm(Some(10), 3, 5).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == StatusCode::OK).count(), 3);
}
