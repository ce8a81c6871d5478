// SPDX-License-Identifier: MIT OR Apache-2.0
//! The switches of a scope: off (CTX-5).

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::post as on_post;
use http::{Method, StatusCode};
use retryproof_core::config::ScopeConfig;
use retryproof_core::{
    CompletionFailurePolicy, IdempotencyConfig, IdempotencyEngine, Recorded, SharedStore,
};
use retryproof_http::axum::Lease;
use retryproof_http::{AnswerFate, Hold, IdempotencyFilter, Policy, Release, Served};
use retryproof_memory::MemoryStore;
use tower::ServiceExt as _;

use crate::world::{Annotated, Runs, STD, filter_with, post, request, send};

static POLICY: Policy = STD;

/// Changes the settings of the scope `std`.
fn scope(with: impl FnOnce(&mut ScopeConfig)) -> impl FnOnce(&mut IdempotencyConfig) {
    move |config: &mut IdempotencyConfig| with(config.scopes.entry("std".to_owned()).or_default())
}

fn filter_on(store: &SharedStore, with: impl FnOnce(&mut IdempotencyConfig)) -> IdempotencyFilter {
    let mut config = IdempotencyConfig::default();
    with(&mut config);
    let engine = IdempotencyEngine::builder(store.clone()).config(config).build().unwrap();
    IdempotencyFilter::builder(engine).callers_share_keys().build().unwrap()
}

/// A guarded route that answers with the status in its body, or with 200.
fn app(filter: &IdempotencyFilter, policy: Policy) -> (Router, Runs) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |body: String| async move {
            let run = runs.run();
            let status = body.parse().ok().and_then(|status| StatusCode::from_u16(status).ok());
            (status.unwrap_or_default(), run.to_string())
        }
    };
    (Router::new().route("/pay", on_post(handler).layer(filter.guard(policy))), runs)
}

#[tokio::test(start_paused = true)]
async fn ctx_5_http_18_requests_of_a_scope_that_is_off_run_unguarded() {
    let filter = filter_with(scope(|own| own.enabled = Some(false)));
    let (app, runs) = app(&filter, STD);
    for run in 1..4 {
        let Ok(response) = app.clone().oneshot(post("/pay", "k", "")).await;
        assert_eq!(response.extensions().get(), Some(&Served::Unguarded));
        assert_eq!(response.extensions().get(), Some(&Recorded::No));
        assert!(response.headers().get("idempotent-replayed").is_none());
        assert_eq!(runs.count(), run);
    }
    let keyless = send(&app, request(Method::POST, "/pay", &[], "")).await;
    assert_eq!(keyless.code(), "key-missing", "the checks of a request stay");
    assert_eq!(runs.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn ctx_5_a_handler_gets_its_lease_and_its_marks_are_taken_off() {
    let filter = filter_with(|config| {
        config.completion_failure_policy = CompletionFailurePolicy::Propagate;
        config.web.max_response_bytes = 4;
        scope(|own| own.enabled = Some(false))(config);
    });
    let handler = Annotated(&POLICY, |lease: Lease, body: String| async move {
        assert!(!lease.is_guarded());
        match &*body {
            "release" => (Release, "r").into_response(),
            "hold" => (Hold, "h").into_response(),
            _ => "longer than the limit".into_response(),
        }
    });
    let app = Router::new().route("/pay", on_post(handler)).with_state(filter);
    for body in ["release", "hold", "hold", "long"] {
        let Ok(response) = app.clone().oneshot(post("/pay", "k", body)).await;
        assert_eq!(response.status(), StatusCode::OK, "{body}");
        assert_eq!(response.extensions().get(), Some(&Served::Unguarded), "{body}");
        assert_eq!(response.extensions().get::<AnswerFate>(), None, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn ctx_5_records_outlive_the_time_for_which_a_scope_is_off() {
    let store = SharedStore::from(MemoryStore::new());
    let (on, first) = app(&filter_on(&store, |_| {}), STD);
    let off = filter_on(&store, scope(|own| own.enabled = Some(false)));
    let (off, unguarded) = app(&off, STD);
    assert_eq!(send(&on, post("/pay", "old", "")).await.text(), "1");
    assert!(!send(&off, post("/pay", "old", "")).await.is_replay());
    assert_eq!(send(&off, post("/pay", "new", "")).await.text(), "2");
    assert!(send(&on, post("/pay", "old", "")).await.is_replay(), "the record is untouched");
    assert_eq!(send(&on, post("/pay", "new", "")).await.text(), "2", "it was never recorded");
    assert_eq!((first.count(), unguarded.count()), (2, 2));
}
