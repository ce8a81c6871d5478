// SPDX-License-Identifier: MIT OR Apache-2.0
//! The filter's hook that decides the fate of a response (HTTP-7).

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use http::StatusCode;
use retryproof_http::{AnswerFate, IdempotencyFilter};

use crate::world::{Runs, STD, filter, post, send};

/// Creates an app whose filter has this hook.
fn app(
    hook: impl Fn(&http::response::Parts) -> AnswerFate + Send + Sync + 'static,
    answer: fn() -> Response,
) -> (Router, Runs) {
    let filter = IdempotencyFilter::builder(filter().engine().clone());
    let filter = filter.callers_share_keys().fate(hook).build().unwrap();
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move {
            runs.run();
            answer()
        }
    };
    (Router::new().route("/pay", any(handler).layer(filter.guard(STD))), runs)
}

/// Returns what the first duplicate gets (`None` for a replay, or the code of a refusal) and how
/// often the handler ran.
async fn duplicate(app: &Router, runs: &Runs) -> (Option<String>, usize) {
    send(app, post("/pay", "k", "")).await;
    let again = send(app, post("/pay", "k", "")).await;
    let is_run = again.header("content-type") != Some("application/problem+json");
    ((!is_run).then(|| again.code().to_owned()), runs.count())
}

fn by_status(response: &http::response::Parts) -> AnswerFate {
    match response.status {
        StatusCode::TOO_MANY_REQUESTS => AnswerFate::Release,
        StatusCode::GATEWAY_TIMEOUT => AnswerFate::Hold,
        StatusCode::ACCEPTED => AnswerFate::Stream,
        _ => AnswerFate::Store,
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_the_filters_hook_decides_for_answers_without_a_mark() {
    let refused = |code: &str| Some(code.to_owned());
    for (answer, expected) in [
        ((|| StatusCode::TOO_MANY_REQUESTS.into_response()) as fn() -> Response, (None, 2)),
        (|| StatusCode::GATEWAY_TIMEOUT.into_response(), (refused("in-flight"), 1)),
        (|| StatusCode::ACCEPTED.into_response(), (refused("result-not-replayable"), 1)),
        (|| StatusCode::SERVICE_UNAVAILABLE.into_response(), (None, 1)),
        // An `AnswerFate` on the response takes precedence over the hook.
        (|| (StatusCode::TOO_MANY_REQUESTS, AnswerFate::Store, "").into_response(), (None, 1)),
        (|| (StatusCode::OK, AnswerFate::Release, "").into_response(), (None, 2)),
    ] {
        let (app, runs) = app(by_status, answer);
        assert_eq!(duplicate(&app, &runs).await, expected, "{:?}", answer());
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_the_hook_sees_fields_and_extensions_and_leaves_the_answer_as_it_is() {
    let by_extension = |response: &http::response::Parts| match response.extensions.get::<&str>() {
        Some(&"free it") if response.headers.contains_key("x-line") => AnswerFate::Release,
        _ => AnswerFate::Store,
    };
    let (app, runs) = app(by_extension, || {
        let mut response = ([("x-line", "1")], "body").into_response();
        response.extensions_mut().insert("free it");
        response
    });
    let answer = send(&app, post("/pay", "k", "")).await;
    assert_eq!((answer.text(), answer.header("x-line")), ("body", Some("1")));
    assert!(!send(&app, post("/pay", "k", "")).await.is_replay());
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn http_7_an_answer_whose_hook_panics_is_stored() {
    let (app, runs) = app(|_| panic!("the hook panics"), || "paid".into_response());
    assert_eq!(duplicate(&app, &runs).await, (None, 1));
}

#[tokio::test(start_paused = true)]
async fn http_19_http_1_the_405_of_a_router_is_released_before_the_hook_is_asked() {
    let filter = IdempotencyFilter::builder(filter().engine().clone());
    let filter = filter.callers_share_keys().fate(|_| AnswerFate::Store).build().unwrap();
    let app = Router::new().route("/pay", get(|| async {})).layer(filter.guard(STD));
    for _ in 0..2 {
        let answer = send(&app, post("/pay", "k", "")).await;
        assert_eq!((answer.status, answer.is_replay()), (StatusCode::METHOD_NOT_ALLOWED, false));
    }
}
