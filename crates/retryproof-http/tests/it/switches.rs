// SPDX-License-Identifier: MIT OR Apache-2.0
//! The switches of a scope: off (CTX-5), in shadow mode (CTX-6), which statuses are stored
//! (HTTP-19), the status of a mismatch (HTTP-20), members that the fingerprint leaves out (FP-5), a
//! mismatch while the first call runs (FP-6); and the published window (HTTP-21).
//!
//! This file is over 400 lines long because the switches share the routes and settings of this
//! file.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::post as on_post;
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body::Frame;
use retryproof_core::config::{ScopeConfig, StoredStatuses};
use retryproof_core::observe::ShadowVerdict;
use retryproof_core::{
    CompletionFailurePolicy, ErrorKind, FingerprintMode, IdempotencyConfig, IdempotencyEngine,
    Recorded, SharedStore,
};
use retryproof_http::axum::Lease;
use retryproof_http::{AnswerFate, Hold, IdempotencyFilter, Policy, Release, Served};
use retryproof_memory::MemoryStore;
use tokio::sync::Notify;
use tower::{Layer as _, ServiceExt as _};

use crate::faulty::{Fault, Faulty};
use crate::world::{Annotated, Answer, Runs, STD, filter, filter_with, post, request, send};

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

/// Creates a guarded route that answers with the status in its body, or with 200.
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

#[tokio::test(start_paused = true)]
async fn ctx_6_http_18_requests_of_a_scope_in_shadow_mode_run_and_say_what_a_guard_would_do() {
    let store = SharedStore::from(MemoryStore::new());
    let filter = filter_on(&store, scope(|own| own.shadow = Some(true)));
    let (app, runs) = app(&filter, STD);
    for (run, body, verdict) in [
        (1, "", ShadowVerdict::Executed),
        (2, "", ShadowVerdict::Replayed),
        (3, "other", ShadowVerdict::Mismatch),
    ] {
        let Ok(response) = app.clone().oneshot(post("/pay", "k", body)).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.extensions().get(), Some(&Served::Shadow(verdict)));
        assert_eq!(response.extensions().get(), Some(&Recorded::No));
        assert!(response.headers().get("idempotent-replayed").is_none());
        assert_eq!(runs.count(), run);
    }
    let keyless = send(&app, request(Method::POST, "/pay", &[], "")).await;
    assert_eq!(keyless.code(), "key-missing", "the checks of a request stay");
    // With the guard on, a record from shadow mode is replayed.
    let (on, late) = app_on(&store);
    let replay = send(&on, post("/pay", "k", "")).await;
    assert!(replay.is_replay());
    assert_eq!((replay.text(), late.count()), ("1", 0));
}

fn app_on(store: &SharedStore) -> (Router, Runs) {
    app(&filter_on(store, |_| {}), STD)
}

/// A body that breaks off after its first bytes.
#[derive(Default)]
struct BreaksOff(bool);

impl http_body::Body for BreaksOff {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let started = std::mem::replace(&mut self.0, true);
        Poll::Ready(Some(match started {
            false => Ok(Frame::data(Bytes::from_static(b"begun"))),
            true => Err(io::Error::other("the body breaks off")),
        }))
    }
}

/// Returns how each front end answers a request whose body breaks off, and a request whose response
/// breaks off.
async fn answers_that_break_off(filter: IdempotencyFilter) -> Vec<Answer> {
    async fn broken(body: Bytes) -> Body {
        assert_ne!(body, "begun", "a part of a body reaches no handler");
        Body::new(BreaksOff::default())
    }
    let requests = |key: &str| {
        let upload = post("/pay", &format!("{key}-upload"), Body::new(BreaksOff::default()));
        [upload, post("/pay", &format!("{key}-download"), "whole")]
    };
    let layered = Router::new().route("/pay", on_post(broken).layer(filter.guard(STD)));
    let annotated = Router::new().route("/pay", on_post(Annotated(&POLICY, broken)));
    let mut answers = Vec::new();
    for (key, app) in [("layered", layered), ("annotated", annotated.with_state(filter.clone()))] {
        for request in requests(key) {
            answers.push(send(&app, request).await);
        }
    }
    #[cfg(feature = "grpc")]
    for request in requests("grpc") {
        let method = tower::service_fn(|_| async {
            let response = http::Response::builder().header("content-type", "application/grpc");
            Ok::<_, std::convert::Infallible>(response.body(BreaksOff::default()).unwrap())
        });
        let Ok(answer) = filter.grpc(STD).layer(method).oneshot(request).await;
        answers.push(Answer::of(answer).await);
    }
    answers
}

#[tokio::test(start_paused = true)]
async fn ctx_5_http_11_a_body_that_breaks_off_is_answered_as_with_the_guard_on() {
    for policy in [CompletionFailurePolicy::LogAndReturn, CompletionFailurePolicy::Propagate] {
        let [on, off] = [true, false].map(|is_on| {
            let filter = filter_with(|config| {
                config.completion_failure_policy = policy;
                scope(|own| own.enabled = Some(is_on))(config);
            });
            answers_that_break_off(filter)
        });
        let (on, off) = (on.await, off.await);
        assert_eq!(on, off);
        for answers in off[..4].chunks(2) {
            let [upload, download] = answers else { panic!("two answers of each front end") };
            assert_eq!((upload.status.as_u16(), upload.code()), (400, "body-unreadable"));
            assert_eq!((download.status.as_u16(), download.code()), (500, "response-failed"));
        }
        let grpc: Vec<_> = off[4..].iter().map(|answer| answer.header("grpc-status")).collect();
        assert_eq!(grpc, [Some("14"), Some("13")][..grpc.len()]);
    }
}

/// Only a scope whose guard is on prevents a second run, so in any other scope the response does
/// not promise that the request runs only once.
#[tokio::test(start_paused = true)]
async fn http_11_ctx_5_ctx_6_a_response_that_breaks_off_promises_only_what_its_scope_keeps() {
    for (enabled, shadow, runs_again) in
        [(true, false, false), (false, false, true), (true, true, true)]
    {
        let filter = filter_with(scope(|own| {
            (own.enabled, own.shadow) = (Some(enabled), Some(shadow));
        }));
        let runs = Runs::default();
        let counted = runs.clone();
        let handler = move || async move {
            counted.run();
            Body::new(BreaksOff::default())
        };
        let app = Router::new().route("/pay", on_post(handler).layer(filter.guard(STD)));
        let first = send(&app, post("/pay", "k", "")).await;
        assert_eq!(first.code(), "response-failed");
        assert!(first.text().contains("the request was carried out"), "{}", first.text());
        send(&app, post("/pay", "k", "")).await;
        assert_eq!(runs.count(), if runs_again { 2 } else { 1 });
        let promises = first.text().contains("will not be carried out again");
        assert!(!(promises && runs_again), "{enabled} {shadow}: {}", first.text());
    }
}

#[tokio::test(start_paused = true)]
async fn http_19_only_chosen_error_statuses_are_stored() {
    let some = StoredStatuses::SUCCESSES;
    for (stored, kept, freed) in [
        (some, &[200, 303][..], &[400, 404, 409, 500, 503][..]),
        (some.with_client_errors(), &[200, 303, 400, 422], &[500, 503]),
        (some.with_server_errors(), &[200, 500, 503], &[400, 422]),
        (some.with_client_errors().with_server_errors(), &[200, 303, 400, 503], &[]),
    ] {
        let by_scope = filter_with(scope(|own| own.stored = Some(stored)));
        for (filter, policy) in [(by_scope, STD), (filter(), STD.with_stored(stored))] {
            for (statuses, runs_again) in [(kept, false), (freed, true)] {
                for status in statuses {
                    let (app, runs) = app(&filter, policy);
                    let send = || send(&app, post("/pay", &status.to_string(), status.to_string()));
                    let (first, again) = (send().await, send().await);
                    assert_eq!((first.status.as_u16(), again.status.as_u16()), (*status, *status));
                    assert_eq!(again.is_replay(), !runs_again, "{stored}: {status}");
                    assert_eq!(runs.count(), 1 + usize::from(runs_again), "{stored}: {status}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http_19_ctx_3_the_scope_overrides_the_code_and_a_mark_overrides_both() {
    let none = StoredStatuses::SUCCESSES;
    let all = none.with_client_errors().with_server_errors();
    let filter = filter_with(scope(|own| own.stored = Some(none)));
    let (app_of, _) = app(&filter, STD.with_stored(all));
    for _ in 0..2 {
        assert!(!send(&app_of, post("/pay", "k", "500")).await.is_replay());
    }
    let marked = on_post(|| async { (StatusCode::BAD_GATEWAY, AnswerFate::Store, "charged") });
    let marked = Router::new().route("/pay", marked.layer(filter.guard(STD)));
    assert!(!send(&marked, post("/pay", "m", "")).await.is_replay());
    assert!(send(&marked, post("/pay", "m", "")).await.is_replay());
    let engine = filter.engine().clone();
    let hooked = IdempotencyFilter::builder(engine)
        .callers_share_keys()
        .fate(|_| AnswerFate::Store)
        .build()
        .unwrap();
    let (hooked, runs) = app(&hooked, STD);
    for _ in 0..2 {
        send(&hooked, post("/pay", "h", "500")).await;
    }
    assert_eq!(runs.count(), 1, "the hook decides for all responses without a mark");
}

#[tokio::test(start_paused = true)]
async fn http_20_a_mismatch_has_the_status_of_its_scope() {
    let conflict = || filter_with(scope(|own| own.mismatch_status = Some(409)));
    for (filter, policy, status) in [
        (filter(), STD, 422),
        (filter(), STD.with_mismatch_status(409), 409),
        (conflict(), STD, 409),
        (conflict(), STD.with_mismatch_status(422), 409),
    ] {
        let (app, runs) = app(&filter, policy);
        send(&app, post("/pay", "k", "one")).await;
        let other = send(&app, post("/pay", "k", "two")).await;
        assert_eq!((other.status.as_u16(), other.code()), (status, "fingerprint-mismatch"));
        assert!(other.text().contains(&format!("\"status\":{status}")), "{}", other.text());
        assert!(other.header("retry-after").is_none());
        assert_eq!(runs.count(), 1);
    }
}

/// Creates a route whose requests run until the returned signal is sent.
fn slow(filter: &IdempotencyFilter, policy: Policy) -> (Router, Runs, Arc<Notify>) {
    let (runs, end) = (Runs::default(), Arc::new(Notify::new()));
    let handler = {
        let (runs, end) = (runs.clone(), Arc::clone(&end));
        move || async move {
            let run = runs.run();
            end.notified().await;
            run.to_string()
        }
    };
    (Router::new().route("/pay", on_post(handler).layer(filter.guard(policy))), runs, end)
}

#[tokio::test(start_paused = true)]
async fn fp_6_http_18_http_20_another_request_is_refused_while_the_first_runs() {
    for status in [422, 409] {
        let filter = filter_with(scope(|own| {
            own.fingerprint_while_in_flight = Some(true);
            own.mismatch_status = Some(status);
        }));
        let (app, runs, end) = slow(&filter, STD);
        let first = tokio::spawn({
            let app = app.clone();
            async move { send(&app, post("/pay", "k", "one")).await }
        });
        tokio::task::yield_now().await;
        let began = tokio::time::Instant::now();
        let Ok(other) = app.clone().oneshot(post("/pay", "k", "two")).await;
        assert_eq!(other.status().as_u16(), status);
        assert_eq!(other.extensions().get(), Some(&Served::Mismatch));
        assert!(other.headers().get("retry-after").is_none());
        assert_eq!(began.elapsed(), Duration::ZERO, "it does not wait");
        let retry = tokio::spawn({
            let app = app.clone();
            async move { send(&app, post("/pay", "k", "one")).await }
        });
        tokio::task::yield_now().await;
        end.notify_one();
        assert_eq!(first.await.unwrap().text(), "1");
        assert!(retry.await.unwrap().is_replay(), "the same request waits for the answer");
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn fp_6_http_10_without_the_switch_another_request_waits() {
    let (app, runs, _end) = slow(&filter(), STD.with_wait_timeout(Duration::from_secs(3)));
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, post("/pay", "k", "one")).await }
    });
    tokio::task::yield_now().await;
    let began = tokio::time::Instant::now();
    assert_eq!(send(&app, post("/pay", "k", "two")).await.code(), "in-flight");
    assert_eq!((began.elapsed(), runs.count()), (Duration::from_secs(3), 1));
    first.abort();
}

/// Fingerprints that leave out different members cannot be compared. A request's fingerprint is
/// computed with the algorithm of the record only if the record is complete (FP-3), so fingerprints
/// of different algorithms are not compared while the first call runs.
#[tokio::test(start_paused = true)]
async fn fp_6_fp_3_fp_5_fingerprints_of_different_kinds_are_not_judged_in_flight() {
    type Setting = fn(&mut IdempotencyConfig);
    let settings: [Setting; 3] = [
        |config| without(&["/at"])(config),
        |config| without(&["/at", "/by"])(config),
        |config| config.web.fingerprint = FingerprintMode::Body,
    ];
    for (at, first) in settings.into_iter().enumerate() {
        for second in settings.into_iter().skip(at + 1) {
            let store = SharedStore::from(MemoryStore::new());
            let on = |setting: Setting| {
                filter_on(&store, move |config| {
                    setting(config);
                    scope(|own| own.fingerprint_while_in_flight = Some(true))(config);
                })
            };
            let (app, runs, _end) = slow(&on(first), STD);
            let holder =
                tokio::spawn(async move { send(&app, post("/pay", "k", r#"{"cents":1}"#)).await });
            tokio::task::yield_now().await;
            let (app, others, _end) = slow(&on(second), STD.with_wait_timeout(Duration::ZERO));
            let other = send(&app, post("/pay", "k", r#"{"cents":2}"#)).await;
            assert_eq!(other.code(), "in-flight");
            assert_eq!((runs.count(), others.count()), (1, 0));
            holder.abort();
        }
    }
}

/// Returns the settings of a scope whose fingerprint leaves these members out.
fn without(pointers: &'static [&'static str]) -> impl FnOnce(&mut IdempotencyConfig) {
    move |config: &mut IdempotencyConfig| {
        config.web.fingerprint = FingerprintMode::Json;
        let pointers: Vec<_> = pointers.iter().map(|&pointer| pointer.to_owned()).collect();
        scope(|own| own.fingerprint_ignore = pointers)(config);
    }
}

#[tokio::test(start_paused = true)]
async fn fp_5_a_retry_may_differ_in_ignored_members() {
    let (app, runs) = app(&filter_with(without(&["/at"])), STD);
    let first = send(&app, post("/pay", "k", r#"{"cents":1,"at":1}"#)).await;
    assert!(!first.is_replay());
    for retry in [r#"{"at":2,"cents":1}"#, r#"{"cents":1.0}"#] {
        assert!(send(&app, post("/pay", "k", retry)).await.is_replay(), "{retry}");
    }
    let other = send(&app, post("/pay", "k", r#"{"cents":2,"at":1}"#)).await;
    assert_eq!(other.code(), "fingerprint-mismatch");
    // A large body is canonicalised on another thread.
    let large = |at: u32| format!(r#"{{"at":{at},"list":[{}0]}}"#, "1,".repeat(10_000));
    assert!(!send(&app, post("/pay", "large", large(1))).await.is_replay());
    assert!(send(&app, post("/pay", "large", large(2))).await.is_replay());
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn fp_5_a_changed_list_refuses_no_retry_and_still_tells_paths_apart() {
    let body = r#"{"cents":1,"at":1,"trace":1}"#;
    let lists = [&[][..], &["/at"], &["/at", "/trace"]];
    for (before, after) in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)] {
        let store = SharedStore::from(MemoryStore::new());
        let filters = [before, after].map(|list: usize| filter_on(&store, without(lists[list])));
        let [(old, ran), (new, ran_again)] = filters.map(|filter| {
            let runs = Runs::default();
            let counted = runs.clone();
            let handler = move || async move { counted.run().to_string() };
            let routes = Router::new().route("/pay", on_post(handler.clone()));
            let routes = routes.route("/refund", on_post(handler));
            (routes.route_layer(filter.guard(STD)), runs)
        });
        assert!(!send(&old, post("/pay", "k", body)).await.is_replay());
        let retry = send(&new, post("/pay", "k", body)).await;
        assert!(retry.is_replay(), "{before} to {after}: {retry:?}");
        let elsewhere = send(&new, post("/refund", "k", body)).await;
        assert_eq!(elsewhere.code(), "fingerprint-mismatch", "{before} to {after}");
        assert_eq!((ran.count(), ran_again.count()), (1, 0));
    }
}

#[test]
fn fp_5_a_filter_with_another_fingerprint_is_not_built() {
    let mut config = IdempotencyConfig::default();
    without(&["/at"])(&mut config);
    let engine = IdempotencyEngine::builder(MemoryStore::new()).config(config).build().unwrap();
    let mut web = engine.config().web.clone();
    web.fingerprint = FingerprintMode::Request;
    let built = IdempotencyFilter::builder(engine).config(web).callers_share_keys().build();
    let message = built.unwrap_err().to_string();
    assert!(message.contains("`fingerprint-ignore`, which needs the fingerprint `json`"));
}

const EXPIRES: &str = "idempotency-expires";

/// Creates a route of a filter that publishes the window. The handler also sets
/// `Idempotency-Expires` itself.
fn publishing(store: impl Into<SharedStore>, ttl: Duration) -> Router {
    let with = |config: &mut IdempotencyConfig| {
        config.web.publish_window = true;
        scope(|own| own.ttl = Some(ttl))(config);
    };
    let filter = filter_on(&store.into(), with);
    let handler = |body: String| async move {
        let fate = match &*body {
            "release" => AnswerFate::Release,
            "hold" => AnswerFate::Hold,
            "stream" => AnswerFate::Stream,
            _ => AnswerFate::Store,
        };
        (fate, [(EXPIRES, "never")], "done")
    };
    Router::new().route("/pay", on_post(handler).layer(filter.guard(STD)))
}

#[tokio::test(start_paused = true)]
async fn http_21_a_recorded_response_and_its_replays_say_when_the_key_is_forgotten() {
    const DAY: Duration = Duration::from_secs(86_400);
    let year = |date: &str| date[12..16].parse::<u16>().expect("a year");
    let mut years = Vec::new();
    for ttl in [DAY, 3_650 * DAY] {
        let app = publishing(MemoryStore::new(), ttl);
        let first = send(&app, post("/pay", "k", "")).await;
        let date = first.header(EXPIRES).expect("a date").to_owned();
        assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
        assert_eq!(first.headers.get_all(EXPIRES).iter().count(), 1);
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let replay = send(&app, post("/pay", "k", "")).await;
        assert!(replay.is_replay());
        assert_eq!(replay.header(EXPIRES), Some(&*date), "a replay has the same date");
        let stream = send(&app, post("/pay", "s", "stream")).await;
        assert!(stream.header(EXPIRES).is_some_and(|date| date != "never"));
        years.push(year(&date));
    }
    assert!((9..=10).contains(&(years[1] - years[0])), "the ttl of the scope applies: {years:?}");
}

#[tokio::test(start_paused = true)]
async fn http_21_what_is_not_recorded_has_no_date() {
    let store = Faulty::new();
    let published = publishing(store.clone(), Duration::from_secs(60));
    for body in ["release", "hold"] {
        let answer = send(&published, post("/pay", body, body)).await;
        assert_eq!(answer.header(EXPIRES), None, "{body}");
    }
    assert!(send(&published, post("/pay", "k", "")).await.header(EXPIRES).is_some());
    let other = send(&published, post("/pay", "k", "other")).await;
    assert_eq!((other.code(), other.header(EXPIRES)), ("fingerprint-mismatch", None));
    store.fault("complete", Fault::Fails(ErrorKind::Unexpected));
    let unrecorded = send(&published, post("/pay", "u", "")).await;
    assert_eq!((unrecorded.text(), unrecorded.header(EXPIRES)), ("done", None));
    let off = |config: &mut IdempotencyConfig| {
        config.web.publish_window = true;
        scope(|own| own.enabled = Some(false))(config);
    };
    let (off, _) = app(&filter_with(off), STD);
    assert_eq!(send(&off, post("/pay", "k", "")).await.header(EXPIRES), None, "CTX-5");
}

#[tokio::test(start_paused = true)]
async fn http_21_unless_configured_the_field_belongs_to_the_handler() {
    let handler = on_post(|| async { ([(EXPIRES, "own")], "done") });
    let app = Router::new().route("/pay", handler.layer(filter().guard(STD)));
    for _ in 0..2 {
        assert_eq!(send(&app, post("/pay", "k", "")).await.header(EXPIRES), Some("own"));
    }
}
