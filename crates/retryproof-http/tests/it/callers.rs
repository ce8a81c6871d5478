// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the filter finds out who the caller of a request is (HTTP-16).

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use std::sync::Arc;

use retryproof_core::seal::DataSubject;
use retryproof_core::{ErrorKind, IdempotencyEngine, IdentitySecret, SharedStore};
use retryproof_http::{Caller, IdempotencyFilter, IntoCaller, Policy, Problem};
use retryproof_memory::MemoryStore;
use retryproof_testkit::TestKeys;
use tower::{Layer as _, ServiceExt as _};

use crate::world::{Answer, Runs, STD, filter, post, send};

fn engine() -> IdempotencyEngine {
    IdempotencyEngine::new(MemoryStore::new())
}

/// Creates an app with this hook, in which requests without a caller share their records.
fn app<R: IntoCaller>(hook: impl Fn(&Parts) -> R + Send + Sync + 'static) -> (Router, Runs) {
    on(&IdempotencyFilter::builder(engine()).caller(hook).absent_callers_share().build().unwrap())
}

fn on(filter: &IdempotencyFilter) -> (Router, Runs) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move { runs.run().to_string() }
    };
    (Router::new().route("/pay", any(handler).layer(filter.guard(STD))), runs)
}

fn from(tenant: Option<&str>, key: &str) -> Request<axum::body::Body> {
    let mut request = post("/pay", key, "");
    if let Some(tenant) = tenant {
        request.headers_mut().insert("x-tenant", tenant.parse().unwrap());
    }
    request
}

fn tenant_of(parts: &Parts) -> Option<String> {
    parts.headers.get("x-tenant").map(|tenant| tenant.to_str().unwrap_or_default().to_owned())
}

#[tokio::test(start_paused = true)]
async fn http_16_absent_empty_and_a_are_three_callers() {
    let (app, runs) = app(tenant_of);
    let long = "t".repeat(300);
    let callers = [
        None,
        Some(""),
        Some("a"),
        Some("-"),
        Some("a:k"),
        Some(&long[..240]),
        Some(&long[..241]),
        Some(&long),
    ];
    for (run, caller) in callers.into_iter().enumerate() {
        assert_eq!(send(&app, from(caller, "k")).await.text(), (run + 1).to_string(), "{caller:?}");
        assert!(send(&app, from(caller, "k")).await.is_replay());
    }
    assert_eq!(runs.count(), callers.len());
}

/// An answer is sealed with the key of its caller, and becomes unreadable when that key is
/// destroyed.
#[tokio::test(start_paused = true)]
async fn seal_3_the_caller_is_the_subject_of_an_answer() {
    let secret = IdentitySecret::new("s".repeat(32)).unwrap();
    let memory = MemoryStore::builder().identity_secret(secret.clone()).build();
    let keys = TestKeys::new();
    let store = SharedStore::from(memory).sealed_by(Arc::new(keys.clone())).unwrap();
    let engine = IdempotencyEngine::new(store);
    let filter = IdempotencyFilter::builder(engine).caller(tenant_of).absent_callers_share();
    let (app, runs) = on(&filter.build().unwrap());
    let callers = [Some("ada"), Some("bob"), None];
    for caller in callers {
        send(&app, from(caller, "k")).await;
        assert!(send(&app, from(caller, "k")).await.is_replay());
    }
    keys.destroy(&DataSubject::named(&secret, "ada"));
    for caller in callers {
        let answer = send(&app, from(caller, "k")).await;
        assert_eq!(answer.is_replay(), caller != Some("ada"), "{caller:?}: {}", answer.text());
        if caller == Some("ada") {
            assert_eq!(answer.code(), "result-not-replayable", "a tombstone, and no error");
        }
    }
    assert_eq!(runs.count(), callers.len(), "nothing runs twice");
}

#[tokio::test(start_paused = true)]
async fn http_16_a_request_without_a_caller_is_refused() {
    let (app, runs) = on(&IdempotencyFilter::builder(engine()).caller(tenant_of).build().unwrap());
    let refused = send(&app, from(None, "k")).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::FORBIDDEN, "caller-missing"));
    assert_eq!(refused.header("www-authenticate"), None);
    assert_eq!(runs.count(), 0);
    assert_eq!(send(&app, from(Some(""), "k")).await.text(), "1");
    assert!(send(&app, from(Some(""), "k")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn http_16_a_missing_caller_is_sent_the_challenge_of_the_filter() {
    let challenged = || {
        let builder = IdempotencyFilter::builder(engine()).caller(tenant_of);
        builder.challenge("Bearer realm=\"payments\"")
    };
    let (app, runs) = on(&challenged().build().unwrap());
    let refused = send(&app, from(None, "k")).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::UNAUTHORIZED, "caller-missing"));
    assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"payments\""));
    assert_eq!(runs.count(), 0);
    // An error in the application's own format can also contain the challenge.
    let own = |problem: &Problem| {
        let told = format!("{} {:?} {:?}", problem.status, problem.code, problem.challenge);
        Response::new(Bytes::from(told))
    };
    let (app, _) = on(&challenged().rejections(own).build().unwrap());
    assert_eq!(
        send(&app, from(None, "k")).await.text(),
        "401 CallerMissing Some(\"Bearer realm=\\\"payments\\\"\")"
    );
}

#[test]
fn http_16_a_challenge_that_cannot_be_sent_stops_the_start() {
    let builder = || IdempotencyFilter::builder(engine()).caller(tenant_of);
    for refused in
        [builder().challenge("Bearer\n"), builder().challenge("Bearer").absent_callers_share()]
    {
        assert_eq!(refused.build().unwrap_err().kind(), ErrorKind::Config);
    }
}

#[tokio::test(start_paused = true)]
async fn http_16_absent_callers_never_meet_the_records_of_callers_that_share_keys() {
    let engine = engine();
    let shared = IdempotencyFilter::builder(engine.clone()).callers_share_keys().build().unwrap();
    let hooked = IdempotencyFilter::builder(engine)
        .caller(tenant_of)
        .absent_callers_share()
        .build()
        .unwrap();
    let (shared, hooked) = (on(&shared).0, on(&hooked).0);
    assert!(!send(&shared, from(None, "k")).await.is_replay());
    assert!(!send(&hooked, from(None, "k")).await.is_replay());
    for app in [&shared, &hooked] {
        assert!(send(app, from(None, "k")).await.is_replay());
    }
}

#[tokio::test(start_paused = true)]
async fn http_16_a_hook_may_wait() {
    let hook = |parts: &Parts| {
        let tenant = tenant_of(parts);
        async move {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            match tenant.as_deref() {
                Some("banned") => Err(Response::new("banned")),
                _ => Ok(tenant),
            }
        }
    };
    let (app, runs) = on(&IdempotencyFilter::builder(engine()).caller_async(hook).build().unwrap());
    assert_eq!(send(&app, from(None, "k")).await.code(), "caller-missing");
    assert_eq!(send(&app, from(Some("banned"), "k")).await.text(), "banned");
    assert_eq!(runs.count(), 0);
    for (tenant, answer) in [("a", "1"), ("b", "2"), ("a", "1")] {
        assert_eq!(send(&app, from(Some(tenant), "k")).await.text(), answer);
    }
    // This request is dropped while the hook waits, so nothing is acquired.
    let left = tokio::time::timeout(
        std::time::Duration::from_millis(10),
        send(&app, from(Some("c"), "k")),
    );
    assert!(left.await.is_err());
    assert_eq!(send(&app, from(Some("c"), "k")).await.text(), "3");
}

#[tokio::test(start_paused = true)]
async fn http_16_the_longest_key_fits_beside_the_longest_caller() {
    let (app, _) = app(tenant_of);
    for caller in [None, Some("c".repeat(240)), Some("c".repeat(4000))] {
        let key = "k".repeat(255);
        assert_eq!(send(&app, from(caller.as_deref(), &key)).await.status, StatusCode::OK);
        assert!(send(&app, from(caller.as_deref(), &key)).await.is_replay());
    }
}

#[tokio::test(start_paused = true)]
async fn http_16_a_caller_with_control_characters_is_hashed() {
    let (app, runs) = app(|parts: &Parts| tenant_of(parts).map(|tenant| format!("{tenant}\n\0")));
    assert_eq!(send(&app, from(Some("a"), "k")).await.text(), "1");
    assert_eq!(send(&app, from(Some("b"), "k")).await.text(), "2");
    assert!(send(&app, from(Some("a"), "k")).await.is_replay());
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn http_16_a_hook_may_refuse_with_a_response_of_its_own() {
    let refusal = || {
        Response::builder().status(StatusCode::FORBIDDEN).header("x-why", "no tenant").body("who?")
    };
    let (app, runs) = app(move |parts: &Parts| {
        tenant_of(parts).map_or_else(|| Caller::refuse(refusal().unwrap()), Caller::Named)
    });
    let refused = send(&app, from(None, "k")).await;
    assert_eq!((refused.status, refused.text()), (StatusCode::FORBIDDEN, "who?"));
    assert_eq!(refused.header("x-why"), Some("no tenant"));
    assert_eq!(runs.count(), 0);
    assert_eq!(send(&app, from(Some("a"), "k")).await.text(), "1");
}

#[tokio::test(start_paused = true)]
async fn http_16_a_bare_tower_service_needs_a_named_scope() {
    let service = tower::service_fn(|_: Request<axum::body::Body>| async {
        Ok::<_, std::convert::Infallible>(Response::new(axum::body::Body::from("ran")))
    });
    let filter = filter();
    let Ok(unnamed) =
        filter.guard(Policy::unnamed()).layer(service).oneshot(post("/pay", "k", "")).await;
    let answer = Answer::of(unnamed).await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::INTERNAL_SERVER_ERROR, "scope-invalid")
    );
    let Ok(named) = filter.guard(STD).layer(service).oneshot(post("/pay", "k", "")).await;
    assert_eq!(Answer::of(named).await.text(), "ran");
}

#[test]
fn http_16_a_refusal_of_bytes_or_text_is_taken() {
    let refusal: Result<String, Response<Bytes>> = Err(Response::new(Bytes::from_static(b"no")));
    assert!(matches!(refusal.into_caller(), Caller::Refused(response) if response.body() == "no"));
    let absent: Result<Option<String>, Response<String>> = Ok(None);
    assert!(matches!(absent.into_caller(), Caller::Absent));
}

#[test]
fn seal_3_debug_shows_no_caller() {
    let caller = Caller::Named("canary".to_owned());
    assert!(!format!("{caller:?}").contains("canary"), "{caller:?}");
}
