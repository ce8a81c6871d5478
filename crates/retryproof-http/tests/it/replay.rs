// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which parts of the first response a replay contains (HTTP-8, HTTP-9).

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt as _;
use retryproof_core::FingerprintMode;
use retryproof_http::{AnswerFate, IdempotencyFilter, Methods};

use crate::world::{Answer, STD, filter, filter_with, post, request, send};

fn app(
    filter: &IdempotencyFilter,
    answer: impl Fn() -> Response + Clone + Send + Sync + 'static,
) -> Router {
    Router::new().route("/pay", any(move || async move { answer() }).layer(filter.guard(STD)))
}

/// Sends a request twice, and returns the first answer and its replay.
async fn twice(app: &Router) -> (Answer, Answer) {
    let first = send(app, post("/pay", "k", "")).await;
    let again = send(app, post("/pay", "k", "")).await;
    assert!(!first.is_replay() && again.is_replay());
    (first, again)
}

/// Returns the header lines in order, without those that the filter adds to a replay.
fn lines(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let added = ["idempotent-replayed", "cache-control"];
    headers
        .iter()
        .filter(|(name, _)| !added.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Returns the field names in order, without the length that axum adds outside of the guard.
fn names(headers: &HeaderMap) -> Vec<&str> {
    headers.keys().map(HeaderName::as_str).filter(|name| *name != "content-length").collect()
}

fn with_lines(lines: &[(&'static str, &[u8])], body: impl IntoResponse) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.clear();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_bytes(value).expect("a legal value"));
    }
    response
}

#[tokio::test(start_paused = true)]
async fn http_8_order_equal_lines_raw_bytes_and_a_binary_body_survive() {
    let body: Vec<u8> = (0..=255).rev().collect();
    let app = {
        let body = body.clone();
        app(&filter(), move || {
            let lines: [(&str, &[u8]); 7] = [
                ("x-z", b"1"),
                ("content-type", b"application/octet-stream"),
                ("x-a", b"2"),
                ("x-z", b"3"),
                ("x-raw", &[0xe9, b' ', 0xff]),
                ("x-empty", b""),
                ("link", b"</a>; rel=next"),
            ];
            (StatusCode::IM_A_TEAPOT, with_lines(&lines, body.clone())).into_response()
        })
    };
    let (first, again) = twice(&app).await;
    assert_eq!(again.status, StatusCode::IM_A_TEAPOT);
    assert_eq!(lines(&first.headers), lines(&again.headers));
    assert_eq!(again.headers["x-raw"].as_bytes(), &[0xe9, b' ', 0xff]);
    assert_eq!(again.headers.get_all("x-z").iter().collect::<Vec<_>>(), ["1", "3"]);
    assert_eq!((first.body, again.body), (body.clone().into(), body.into()));
}

#[tokio::test(start_paused = true)]
async fn http_8_cache_control_is_replaced_and_the_neighbours_stay() {
    let app = app(&filter(), || {
        with_lines(
            &[
                ("age", b"3"),
                ("cache-control", b"max-age=60"),
                ("expires", b"0"),
                ("cache-control", b"public"),
                ("pragma", b"x"),
            ],
            "",
        )
    });
    let (first, again) = twice(&app).await;
    assert_eq!(first.headers.get_all("cache-control").iter().count(), 2);
    assert_eq!(again.headers.get_all("cache-control").iter().collect::<Vec<_>>(), ["no-store"]);
    assert_eq!(
        names(&again.headers),
        ["age", "cache-control", "expires", "pragma", "idempotent-replayed"]
    );
}

#[tokio::test(start_paused = true)]
async fn http_8_a_handler_cannot_forge_the_mark_and_the_other_fields_keep_their_order() {
    let app = app(&filter(), || {
        with_lines(
            &[
                ("x-1", b"a"),
                ("idempotent-replayed", b"true"),
                ("x-2", b"b"),
                ("idempotent-replayed", b"no"),
                ("x-3", b"c"),
                ("x-1", b"d"),
            ],
            "",
        )
    });
    let first = send(&app, post("/pay", "k", "")).await;
    assert_eq!(first.header("idempotent-replayed"), None);
    assert_eq!(names(&first.headers), ["x-1", "x-2", "x-3"]);
    assert_eq!(first.headers.get_all("x-1").iter().collect::<Vec<_>>(), ["a", "d"]);
    let again = send(&app, post("/pay", "k", "")).await;
    assert_eq!(again.headers.get_all("idempotent-replayed").iter().collect::<Vec<_>>(), ["true"]);
    assert_eq!(lines(&first.headers), lines(&again.headers));
}

#[tokio::test(start_paused = true)]
async fn http_8_a_handler_cannot_forge_the_mark_in_a_trailer_of_an_answer_that_is_not_stored() {
    let trailers = || async {
        let mut map = HeaderMap::new();
        map.append("x-sum", HeaderValue::from_static("1"));
        map.append("idempotent-replayed", HeaderValue::from_static("forged"));
        Some(Ok(map))
    };
    let body = move || Body::new(Body::from("abc").with_trailers(trailers()));
    let marked =
        |fate: AnswerFate| app(&filter(), move || (fate, with_lines(&[], body())).into_response());
    let open_ended =
        app(&filter(), move || with_lines(&[("content-type", b"text/event-stream")], body()));
    for app in [marked(AnswerFate::Release), marked(AnswerFate::Hold), open_ended] {
        let first = send(&app, post("/pay", "k", "")).await;
        assert_eq!(names(&first.trailers.unwrap()), ["x-sum"]);
        assert_eq!(first.body, "abc");
    }
}

#[tokio::test(start_paused = true)]
async fn http_9_connection_bound_and_sensitive_fields_are_not_replayed() {
    let app = app(&filter(), || {
        with_lines(
            &[
                ("connection", b"keep-alive, X-Hop"),
                ("keep-alive", b"timeout=5"),
                ("x-hop", b"1"),
                ("proxy-authenticate", b"a"),
                ("te", b"trailers"),
                ("upgrade", b"h2c"),
                ("date", b"now"),
                ("set-cookie", b"session=canary"),
                ("www-authenticate", b"Basic"),
                ("authentication-info", b"a"),
                ("clear-site-data", b"\"*\""),
                ("x-kept", b"1"),
            ],
            "",
        )
    });
    let (first, again) = twice(&app).await;
    assert!(first.headers.contains_key("set-cookie"), "the first answer is the handler's");
    assert_eq!(names(&again.headers), ["x-kept", "cache-control", "idempotent-replayed"]);
}

#[tokio::test(start_paused = true)]
async fn http_9_one_switch_each_way_and_a_hook() {
    let engine = filter().engine().clone();
    let filter = IdempotencyFilter::builder(engine)
        .callers_share_keys()
        .store_header("set-cookie")
        .skip_header("x-request-id")
        .edit_stored(|status, headers| {
            assert_eq!(status, StatusCode::OK);
            headers.append("x-from-hook", HeaderValue::from_static("1"));
            headers.append("connection", HeaderValue::from_static("close"));
            headers.append("idempotent-replayed", HeaderValue::from_static("forged"));
        })
        .build()
        .unwrap();
    let app = app(&filter, || {
        with_lines(
            &[
                ("set-cookie", b"a=1"),
                ("x-request-id", b"7"),
                ("set-cookie", b"b=2"),
                ("clear-site-data", b"x"),
            ],
            "",
        )
    });
    let (first, again) = twice(&app).await;
    assert!(!first.headers.contains_key("x-from-hook"));
    assert_eq!(
        names(&again.headers),
        ["set-cookie", "x-from-hook", "cache-control", "idempotent-replayed"]
    );
    assert_eq!(again.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
    assert_eq!(again.headers.get_all("idempotent-replayed").iter().collect::<Vec<_>>(), ["true"]);
}

#[tokio::test(start_paused = true)]
async fn http_9_trailers_are_replayed_with_the_trailer_field_made_anew() {
    let app = app(&filter(), || {
        let trailers = async {
            let mut map = HeaderMap::new();
            map.append("x-sum", HeaderValue::from_static("1"));
            map.append("x-other", HeaderValue::from_static("2"));
            map.append("x-sum", HeaderValue::from_static("3"));
            map.append("idempotent-replayed", HeaderValue::from_static("forged"));
            Some(Ok(map))
        };
        with_lines(&[("trailer", b"x-sum")], Body::new(Body::from("abc").with_trailers(trailers)))
    });
    let (first, again) = twice(&app).await;
    assert_eq!(again.header("trailer"), Some("x-sum, x-other"));
    assert_eq!(first.trailers, again.trailers);
    let trailers = again.trailers.unwrap();
    assert_eq!(trailers.get_all("x-sum").iter().collect::<Vec<_>>(), ["1", "3"]);
    assert!(!trailers.contains_key("idempotent-replayed"));
    assert_eq!(again.body, "abc");
}

#[tokio::test(start_paused = true)]
async fn http_9_connection_bound_and_sensitive_trailers_are_not_replayed() {
    let answer = || {
        let trailers = async {
            let mut map = HeaderMap::new();
            for name in ["set-cookie", "authentication-info", "x-hop", "x-own-hop", "date", "x-sum"]
            {
                map.append(name, HeaderValue::from_static("canary"));
            }
            map.append("connection", HeaderValue::from_static("X-Own-Hop"));
            Some(Ok(map))
        };
        with_lines(
            &[("connection", b"X-Hop")],
            Body::new(Body::from("abc").with_trailers(trailers)),
        )
    };
    let (first, again) = twice(&app(&filter(), answer)).await;
    assert_eq!(first.trailers.expect("trailers").len(), 7, "the first answer is the handler's");
    assert_eq!(again.header("trailer"), Some("x-sum"));
    assert_eq!(names(&again.trailers.expect("trailers")), ["x-sum"]);
    // `store_header` and `skip_header` apply to trailers too.
    let filter = IdempotencyFilter::builder(filter().engine().clone())
        .callers_share_keys()
        .store_header("authentication-info")
        .skip_header("x-sum")
        .build()
        .unwrap();
    let (_, again) = twice(&app(&filter, answer)).await;
    assert_eq!(names(&again.trailers.expect("trailers")), ["authentication-info"]);
}

#[tokio::test(start_paused = true)]
async fn http_8_every_duplicate_gets_exactly_the_same_bytes() {
    let app = app(&filter(), || (StatusCode::CREATED, "receipt").into_response());
    let (_, again) = twice(&app).await;
    for _ in 0..5 {
        assert_eq!(send(&app, post("/pay", "k", "")).await, again);
    }
}

#[tokio::test(start_paused = true)]
async fn http_8_a_head_request_has_a_record_and_a_length_of_its_own() {
    let filter = filter();
    let service = tower::service_fn(|_: http::Request<Body>| async {
        let mut response = http::Response::new(Body::empty());
        response.headers_mut().insert("content-length", HeaderValue::from_static("1234"));
        Ok::<_, std::convert::Infallible>(response)
    });
    let guarded = tower::Layer::layer(&filter.guard(STD.methods(Methods::All)), service);
    let head = || request(Method::HEAD, "/pay", &[("idempotency-key", "k")], "");
    for replayed in [false, true] {
        let Ok(response) = tower::ServiceExt::oneshot(guarded.clone(), head()).await;
        let answer = Answer::of(response).await;
        assert_eq!(answer.header("content-length"), Some("1234"));
        assert_eq!(answer.is_replay(), replayed);
    }
}

#[tokio::test(start_paused = true)]
async fn http_8_the_length_that_a_head_was_told_is_not_said_to_a_get() {
    // With the fingerprint `body`, the HEAD and the GET count as the same request.
    let filter = filter_with(|config| config.web.fingerprint = FingerprintMode::Body);
    let service = tower::service_fn(|_: http::Request<Body>| async {
        let mut response = http::Response::new(Body::empty());
        response.headers_mut().insert("content-length", HeaderValue::from_static("1234"));
        Ok::<_, std::convert::Infallible>(response)
    });
    let guarded = tower::Layer::layer(&filter.guard(STD.methods(Methods::All)), service);
    for (method, length) in
        [(Method::HEAD, Some("1234")), (Method::GET, None), (Method::HEAD, Some("1234"))]
    {
        let request = request(method.clone(), "/pay", &[("idempotency-key", "k")], "");
        let Ok(response) = tower::ServiceExt::oneshot(guarded.clone(), request).await;
        assert_eq!(Answer::of(response).await.header("content-length"), length, "{method}");
    }
}
