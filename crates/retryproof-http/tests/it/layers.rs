// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of layers (the table in the HTTP guide), and "never twice" (HTTP-15).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post as on_post};
use axum::{Extension, Router};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use retryproof_http::adapter::CallMark;
use retryproof_http::axum::IdempotencyKey;
use retryproof_http::{IdempotencyFilter, Policy};
use tokio::time::sleep;
use tower::ServiceExt as _;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;

use crate::world::{Annotated, Runs, STD, filter, filter_with, post, request, send};

const SEC: Duration = Duration::from_secs(1);
static POLICY: Policy = STD;

fn slow(runs: &Runs, time: Duration) -> impl Handler<((),), ()> {
    let runs = runs.clone();
    move || async move {
        let run = runs.run();
        sleep(time).await;
        run.to_string()
    }
}

#[tokio::test(start_paused = true)]
async fn layers_timeout_outside_lets_the_action_finish_and_the_retry_replays() {
    let runs = Runs::default();
    let app = Router::new()
        .route("/pay", any(slow(&runs, 3 * SEC)).layer(filter().guard(STD)))
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, SEC));
    assert_eq!(send(&app, post("/pay", "k", "")).await.status, StatusCode::REQUEST_TIMEOUT);
    sleep(3 * SEC).await;
    let again = send(&app, post("/pay", "k", "")).await;
    assert_eq!((again.text(), again.is_replay()), ("1", true));
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn layers_timeout_inside_stores_its_408_as_the_manual_says() {
    let runs = Runs::default();
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, SEC);
    let app = Router::new()
        .route("/pay", any(slow(&runs, 3 * SEC)))
        .layer(timeout)
        .layer(filter().guard(STD));
    assert_eq!(send(&app, post("/pay", "k", "")).await.status, StatusCode::REQUEST_TIMEOUT);
    let again = send(&app, post("/pay", "k", "")).await;
    assert_eq!((again.status, again.is_replay()), (StatusCode::REQUEST_TIMEOUT, true));
}

#[tokio::test(start_paused = true)]
async fn layers_catch_panic_outside_releases_inside_stores() {
    let panics = || async {
        sleep(SEC).await;
        assert!(STD.scope().is_none(), "panics");
    };
    let outside = Router::new()
        .route("/pay", any(panics).layer(filter().guard(STD)))
        .layer(CatchPanicLayer::new());
    assert_eq!(
        send(&outside, post("/pay", "k", "")).await.status,
        StatusCode::INTERNAL_SERVER_ERROR
    );
    assert!(!send(&outside, post("/pay", "k", "")).await.is_replay());
    let inside = Router::new()
        .route("/pay", any(panics))
        .layer(CatchPanicLayer::new())
        .layer(filter().guard(STD));
    assert_eq!(
        send(&inside, post("/pay", "k", "")).await.status,
        StatusCode::INTERNAL_SERVER_ERROR
    );
    assert!(send(&inside, post("/pay", "k", "")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn layers_what_is_computed_outside_is_fresh_on_a_replay_and_stored_inside() {
    // This layer represents CORS, request ids and compression: it sets a field of the response that
    // depends on the request.
    async fn origin(request: Request, next: Next) -> Response {
        let origin = request.headers().get("origin").cloned();
        let mut response = next.run(request).await;
        if let Some(origin) = origin {
            response.headers_mut().insert("access-control-allow-origin", origin);
        }
        response
    }
    let from =
        |origin| request(Method::POST, "/pay", &[("idempotency-key", "k"), ("origin", origin)], "");
    let outside = Router::new()
        .route("/pay", any(|| async {}).layer(filter().guard(STD)))
        .layer(from_fn(origin));
    let inside = Router::new()
        .route("/pay", any(|| async {}))
        .layer(from_fn(origin))
        .layer(filter().guard(STD));
    for (app, second) in [(outside, "https://b"), (inside, "https://a")] {
        assert_eq!(
            send(&app, from("https://a")).await.header("access-control-allow-origin"),
            Some("https://a")
        );
        let again = send(&app, from("https://b")).await;
        assert!(again.is_replay());
        assert_eq!(again.header("access-control-allow-origin"), Some(second));
    }
}

#[tokio::test(start_paused = true)]
async fn layers_authentication_outside_refuses_before_the_key_is_touched_inside_its_401_is_stored()
{
    async fn authenticate(request: Request, next: Next) -> Response {
        if request.headers().contains_key("x-user") {
            next.run(request).await
        } else {
            StatusCode::UNAUTHORIZED.into_response()
        }
    }
    let known =
        || request(Method::POST, "/pay", &[("idempotency-key", "k"), ("x-user", "ann")], "");
    let outside = Router::new()
        .route("/pay", any(|| async {}).layer(filter().guard(STD)))
        .layer(from_fn(authenticate));
    assert_eq!(send(&outside, post("/pay", "k", "")).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(send(&outside, known()).await.status, StatusCode::OK);
    assert_eq!(send(&outside, post("/pay", "k", "")).await.status, StatusCode::UNAUTHORIZED);
    let inside = Router::new()
        .route("/pay", any(|| async {}))
        .layer(from_fn(authenticate))
        .layer(filter().guard(STD));
    assert_eq!(send(&inside, post("/pay", "k", "")).await.status, StatusCode::UNAUTHORIZED);
    let stored = send(&inside, known()).await;
    assert_eq!((stored.status, stored.is_replay()), (StatusCode::UNAUTHORIZED, true));
}

#[tokio::test(start_paused = true)]
async fn layers_a_smaller_body_limit_outside_is_413_unstored_inside_it_is_stored() {
    let echo = |body: String| async move { body };
    let limit = RequestBodyLimitLayer::new(4);
    let outside = Router::new().route("/pay", any(echo).layer(filter().guard(STD))).layer(limit);
    assert_eq!(
        send(&outside, post("/pay", "k", "12345")).await.status,
        StatusCode::PAYLOAD_TOO_LARGE
    );
    assert_eq!(send(&outside, post("/pay", "k", "1234")).await.text(), "1234");
    let inside = Router::new().route("/pay", any(echo)).layer(limit).layer(filter().guard(STD));
    assert_eq!(
        send(&inside, post("/pay", "k", "12345")).await.status,
        StatusCode::PAYLOAD_TOO_LARGE
    );
    assert!(send(&inside, post("/pay", "k", "12345")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn layers_the_hosts_own_body_limit_outside_is_413_unstored() {
    let length = |body: bytes::Bytes| async move { body.len().to_string() };
    let app = Router::new()
        .route("/pay", any(length).layer(filter().guard(STD)))
        .layer(DefaultBodyLimit::max(2_000));
    let refused = send(&app, post("/pay", "k", "x".repeat(600_000))).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"));
    assert_eq!(send(&app, post("/pay", "k", "x".repeat(2_000))).await.text(), "2000");
}

#[tokio::test(start_paused = true)]
async fn layers_a_concurrency_limit_inside_bounds_work_whose_clients_left() {
    let runs = Runs::default();
    let limit = tower::limit::GlobalConcurrencyLimitLayer::new(1);
    let app = Router::new()
        .route("/pay", any(slow(&runs, 10 * SEC)))
        .layer(limit)
        .layer(filter().guard(STD));
    for key in ["a", "b", "c"] {
        let gone = tokio::time::timeout(SEC, send(&app, post("/pay", key, ""))).await;
        assert!(gone.is_err(), "the client leaves");
    }
    assert_eq!(runs.count(), 1, "the others queue inside");
    sleep(40 * SEC).await;
    assert_eq!(runs.count(), 3);
    for key in ["a", "b", "c"] {
        assert!(send(&app, post("/pay", key, "")).await.is_replay());
    }
}

#[tokio::test(start_paused = true)]
async fn http_15_a_layer_around_an_annotated_handler_decides_and_the_handler_runs_once() {
    let filter = filter();
    let runs = Runs::default();
    let pay = {
        let runs = runs.clone();
        Annotated(&POLICY, move |key: IdempotencyKey, body: String| async move {
            format!("{} {} {body}", runs.run(), key.as_str())
        })
    };
    let outer = filter.guard(Policy::new("outer").with_ttl(SEC));
    let app = Router::new().route("/pay/{id}", on_post(pay)).layer(outer).with_state(filter);
    let first = send(&app, post("/pay/1", "k", "a")).await;
    assert_eq!((first.text(), first.is_replay()), ("1 k a", false));
    assert!(send(&app, post("/pay/1", "k", "a")).await.is_replay());
    // The layer's ttl applies: after it, the key is new, although the annotation says an hour.
    sleep(SEC).await;
    assert_eq!(send(&app, post("/pay/1", "k", "a")).await.text(), "2 k a");
}

/// Each request has a key for the outer filter and another one for the inner filter.
#[tokio::test(start_paused = true)]
async fn http_15_a_guard_inside_that_reads_another_header_does_nothing() {
    let inner = filter_with(|config| config.web.key_header = "order-key".to_owned());
    let pay = slow(&Runs::default(), SEC);
    let pay = on_post(pay).layer(inner.guard(Policy::new("inner")));
    let app = Router::new().route("/pay", pay).layer(filter().guard(STD));
    for (key, run) in [("a", "1"), ("b", "2")] {
        let keys = [("idempotency-key", key), ("order-key", "same")];
        assert_eq!(send(&app, request(Method::POST, "/pay", &keys, "")).await.text(), run);
    }
}

#[tokio::test(start_paused = true)]
async fn http_15_the_mark_of_a_running_call_has_its_decoded_key() {
    let pay = async |Extension(mark): Extension<CallMark>| mark.key().to_owned();
    let app = Router::new().route("/pay", on_post(pay).layer(filter().guard(STD)));
    assert_eq!(send(&app, post("/pay", r#""a\"b""#, "")).await.text(), "a\"b");
}

#[tokio::test(start_paused = true)]
async fn http_15_nested_services_are_one_route_and_guarded_once() {
    let filter = filter();
    let runs = Runs::default();
    let pay = {
        let runs = runs.clone();
        Annotated(&POLICY, move |_: String| async move { runs.run().to_string() })
    };
    let inner = Router::new().route("/pay", on_post(pay)).with_state(filter.clone());
    let outer = filter.guard(Policy::new("outer").with_ttl(SEC));
    let app: Router = Router::new().nest_service("/api", inner).layer(outer);
    assert_eq!(send(&app, post("/api/pay", "k", "")).await.text(), "1");
    sleep(SEC).await;
    assert_eq!(
        send(&app, post("/api/pay", "k", "")).await.text(),
        "2",
        "the inner guard would have replayed"
    );
}

#[tokio::test(start_paused = true)]
async fn http_15_a_request_made_in_process_to_another_route_is_guarded_there() {
    let filter = filter();
    let runs = Runs::default();
    let charge = {
        let runs = runs.clone();
        any(move || async move { runs.run().to_string() })
    };
    let inner: Router =
        Router::new().route("/charge/{id}", charge).layer(filter.guard(Policy::new("charge")));
    // The inner request keeps the extensions of the outer request, as if a careless proxy had
    // copied them.
    let pay = |Extension(inner): Extension<Router>,
               State(_): State<IdempotencyFilter>,
               request: Request| async move {
        let (mut parts, _) = request.into_parts();
        parts.uri = "/charge/1".parse().unwrap();
        let Ok(response) = inner.oneshot(http::Request::from_parts(parts, Body::empty())).await;
        response
    };
    let app = Router::new()
        .route("/pay", on_post(pay).layer(filter.guard(Policy::new("pay"))))
        .route("/pay/again", on_post(pay).layer(filter.guard(Policy::new("again"))))
        .layer(Extension(inner))
        .with_state(filter);
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "1");
    // Another outer route leads to the same inner route, which replays.
    let again = send(&app, post("/pay/again", "k", "")).await;
    assert_eq!(again.text(), "1");
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_15_a_request_made_in_process_to_another_path_of_the_same_route_is_guarded_there() {
    let runs = Runs::default();
    let guard = filter().guard(Policy::unnamed());
    let order = {
        let runs = runs.clone();
        any(move || async move { runs.run().to_string() }).layer(guard.clone())
    };
    let inner: Router = Router::new().route("/orders/{id}", order);
    // This handler requests another order under another key, with a copy of all extensions except
    // `MatchedPath`, which the inner router would extend.
    let forward = |Extension(inner): Extension<Router>, request: Request| async move {
        let (mut parts, _) = request.into_parts();
        parts.uri = "/orders/2".parse().unwrap();
        parts.headers.insert("idempotency-key", "inner".parse().unwrap());
        parts.extensions.remove::<MatchedPath>();
        let Ok(response) = inner.oneshot(http::Request::from_parts(parts, Body::empty())).await;
        response
    };
    let routes = Router::new().route("/orders/{id}", on_post(forward).layer(guard));
    let app = routes.layer(Extension(inner));
    for (path, key) in [("/orders/1", "a"), ("/orders/1", "b"), ("/orders/3", "c")] {
        // Without its guard, the inner call would run each time.
        assert_eq!(send(&app, post(path, key, "")).await.text(), "1", "{path} {key}");
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_15_a_nested_route_with_a_template_is_guarded_once() {
    let filter = filter();
    let runs = Runs::default();
    let pay = {
        let runs = runs.clone();
        Annotated(&POLICY, move |_: String| async move { runs.run().to_string() })
    };
    let inner = Router::new().route("/pay/{id}", on_post(pay));
    let outer = filter.guard(Policy::new("outer").with_ttl(SEC));
    let app = Router::new().nest("/{tenant}/api", inner).layer(outer).with_state(filter);
    assert_eq!(send(&app, post("/ann/api/pay/1", "k", "")).await.text(), "1");
    sleep(SEC).await;
    // If the inner guard, which sees only the stripped path, had guarded the request too, it would
    // now replay the first response.
    assert_eq!(send(&app, post("/ann/api/pay/1", "k", "")).await.text(), "2");
}

#[tokio::test(start_paused = true)]
async fn http_15_a_request_made_in_process_to_the_same_route_with_a_key_of_its_own_is_guarded_there()
 {
    let (runs, me) = (Runs::default(), Arc::<OnceLock<Router>>::default());
    let rpc = {
        let (runs, me) = (runs.clone(), Arc::clone(&me));
        Annotated(&POLICY, move |request: Request| async move {
            let (parts, body) = request.into_parts();
            let batch = body.collect().await.unwrap().to_bytes() == "batch";
            if !batch {
                return runs.run().to_string();
            }
            // The handler makes the same sub-call twice, with everything that a careless proxy
            // copies, except `MatchedPath`, which the router would extend to another route.
            let mut answers = String::new();
            for _ in 0..2 {
                let mut parts = parts.clone();
                parts.extensions.remove::<MatchedPath>();
                parts.headers.insert("idempotency-key", "sub-1".parse().unwrap());
                let call = http::Request::from_parts(parts, Body::from("charge"));
                answers += send(me.get().unwrap(), call).await.text();
            }
            answers
        })
    };
    let app = Router::new().route("/rpc", on_post(rpc)).with_state(filter());
    me.set(app.clone()).unwrap();
    assert_eq!(send(&app, post("/rpc", "b", "batch")).await.text(), "11");
    assert_eq!(runs.count(), 1);
}
