// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fingerprints of canonical JSON: which of them another thread computes (FP-3).

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Waker};

use axum::Router;
use axum::routing::post as on_post;
use retryproof_core::FingerprintMode;
use tower::ServiceExt as _;

use crate::world::{STD, filter_with, post, send};

fn app(fingerprint: FingerprintMode) -> Router {
    let filter = filter_with(|config| config.web.fingerprint = fingerprint);
    Router::new().route("/pay", on_post(|| async { "paid" }).layer(filter.guard(STD)))
}

/// Creates an array of numbers that takes `size` bytes.
fn numbers(size: usize) -> String {
    format!("[{}0]", "5e-324,".repeat(size / 7))
}

/// Whether the request is pending at its first poll. With a memory store and a complete body, only
/// the fingerprint can be the reason.
fn waits(app: &Router, body: String) -> bool {
    let mut call = pin!(app.clone().oneshot(post("/pay", "k", body)));
    call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[tokio::test]
async fn fp_3_canonical_json_of_a_large_body_is_made_off_the_async_worker() {
    let json = app(FingerprintMode::Json);
    assert!(waits(&json, numbers(100_000)));
    assert!(
        !waits(&json, numbers(1_000)),
        "a small one costs less than moving it to another thread"
    );
    assert!(!waits(&app(FingerprintMode::Request), numbers(100_000)), "a digest of bytes is quick");
}

#[tokio::test]
async fn fp_3_where_canonical_json_is_made_changes_no_fingerprint() {
    let app = app(FingerprintMode::Json);
    // The longer spelling of the document is so large that another thread computes its canonical
    // form.
    let spelled = numbers(15_000).replace(',', " ,  ");
    assert_eq!(send(&app, post("/pay", "k", numbers(15_000))).await.text(), "paid");
    assert!(send(&app, post("/pay", "k", spelled.clone())).await.is_replay());
    let other = spelled.replacen("5e-324", "1e-323", 1);
    assert_eq!(send(&app, post("/pay", "k", other)).await.code(), "fingerprint-mismatch");
}
