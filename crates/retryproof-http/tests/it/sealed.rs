// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-3, SEAL-6: the subject of a response, and fingerprints that the store keeps hidden.

use std::sync::Arc;

use axum::Router;
use axum::routing::post as on_post;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use retryproof_core::config::{FingerprintMode, ScopeConfig};
use retryproof_core::seal::DataSubject;
use retryproof_core::store::Peeked;
use retryproof_core::{
    IdempotencyConfig, IdempotencyEngine, IdempotencyStore as _, IdentitySecret, SharedStore,
};
use retryproof_http::{Caller, IdempotencyFilter, Problem};
use retryproof_memory::MemoryStore;
use retryproof_testkit::TestKeys;

use crate::world::{Runs, STD, post, send};

/// Creates a service with these settings, on a store with sealed results.
fn app(store: &SharedStore, mode: FingerprintMode, ignored: &[&str]) -> (Router, Runs) {
    let mut config = IdempotencyConfig::default();
    config.web.fingerprint = mode;
    let ignored = ignored.iter().map(|&pointer| pointer.to_owned()).collect();
    let own = ScopeConfig { fingerprint_ignore: ignored, ..ScopeConfig::default() };
    config.scopes.insert("std".to_owned(), own);
    let engine = IdempotencyEngine::builder(store.clone()).config(config).build().unwrap();
    let filter = IdempotencyFilter::builder(engine).callers_share_keys().build().unwrap();
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = on_post(move || async move { counted.run().to_string() });
    (Router::new().route("/pay", handler.layer(filter.guard(STD))), runs)
}

fn secret() -> IdentitySecret {
    IdentitySecret::new("s".repeat(32)).unwrap()
}

fn about(customer: &str, key: &str) -> Request<axum::body::Body> {
    let mut request = post("/pay", key, "");
    request.headers_mut().insert("x-customer", customer.parse().unwrap());
    request
}

/// The hook returns the subject. If it returns none, the subject is the caller.
#[tokio::test(start_paused = true)]
async fn seal_3_a_hook_names_the_subject_of_an_answer() {
    let memory = MemoryStore::builder().identity_secret(secret()).build();
    let keys = TestKeys::new();
    let store = SharedStore::from(memory).sealed_by(Arc::new(keys.clone())).unwrap();
    let unknown = || Response::builder().status(404).body("no such customer").unwrap();
    let customer = move |request: &Parts| {
        let name = request.headers.get("x-customer").map(|name| name.to_str().unwrap().to_owned());
        match name.as_deref() {
            Some("unknown") => Caller::refuse(unknown()),
            _ => name.map_or(Caller::Absent, Caller::Named),
        }
    };
    let filter = IdempotencyFilter::builder(IdempotencyEngine::new(store))
        .caller(|_: &Parts| "shop".to_owned())
        .subject(customer)
        .build()
        .unwrap();
    // `with_rejections` returns a copy of the filter, which has the `subject` hook too.
    let filter =
        filter.with_rejections(|problem: &Problem| Response::new(problem.code.as_str().into()));
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = on_post(move || async move { counted.run().to_string() });
    let app = Router::new().route("/pay", handler.layer(filter.guard(STD)));
    let requests = || [about("ada", "1"), about("bob", "2"), post("/pay", "3", "")];
    for request in requests() {
        assert_eq!(send(&app, request).await.status, StatusCode::OK);
    }
    let refused = send(&app, about("unknown", "4")).await;
    assert_eq!((refused.status.as_u16(), refused.text()), (404, "no such customer"));
    for (gone, replays) in [("ada", [false, true, true]), ("shop", [false, true, false])] {
        keys.destroy(&DataSubject::named(&secret(), gone));
        for (request, replays) in requests().into_iter().zip(replays) {
            let answer = send(&app, request).await;
            assert_eq!(answer.is_replay(), replays, "{gone}: {}", answer.text());
            assert!(replays || answer.text() == "result-not-replayable", "{}", answer.text());
        }
    }
    assert_eq!(runs.count(), 3, "nothing runs twice");
}

#[tokio::test(start_paused = true)]
async fn seal_6_fp_3_fp_5_a_retry_is_compared_with_a_hidden_fingerprint() {
    let memory = MemoryStore::builder().identity_secret(secret()).build();
    let raw = SharedStore::builder(memory).with_inspect().build();
    let store = raw.clone().sealed_by(Arc::new(TestKeys::new())).unwrap();
    let settings = [
        (FingerprintMode::Request, &[][..]),
        (FingerprintMode::Body, &[]),
        (FingerprintMode::Json, &[]),
        (FingerprintMode::Json, &["/at"]),
        (FingerprintMode::Json, &["/at", "/by"]),
    ];
    let body = r#"{"cents":1,"at":1,"by":1}"#;
    for (at, (mode, ignored)) in settings.into_iter().enumerate() {
        let (before, _) = app(&store, mode, ignored);
        let key = format!("k{at}");
        assert_eq!(send(&before, post("/pay", &key, body)).await.status, StatusCode::OK);
        for (later, now_ignored) in settings {
            let (after, runs) = app(&store, later, now_ignored);
            let retry = send(&after, post("/pay", &key, body)).await;
            assert!(retry.is_replay(), "{mode:?}, {later:?}: {}", retry.text());
            let other = send(&after, post("/pay", &key, r#"{"cents":2}"#)).await;
            // If the record's fingerprint ignores members that this filter does not list, the
            // bodies cannot be compared, because the record does not contain the list (FP-5).
            if ignored.is_empty() || ignored == now_ignored {
                assert_eq!(other.code(), "fingerprint-mismatch", "{mode:?}, {later:?}");
            } else {
                assert!(other.is_replay(), "{ignored:?}, {now_ignored:?}: {}", other.text());
            }
            assert_eq!(runs.count(), 0);
        }
    }
    // The stored data reveals nothing about the request, not even the algorithm of its fingerprint.
    let page = raw.scan(None, 10).await.unwrap().unwrap();
    assert_eq!(page.records.len(), settings.len());
    for record in page.records {
        let Peeked::Complete(stored) = raw.peek(&record.id).await.unwrap() else {
            panic!("expected a result")
        };
        assert_eq!(stored.fingerprint().map(|hidden| hidden.algorithm()), Some(0));
    }
}
