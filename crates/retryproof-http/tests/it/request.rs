// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the filter requires of a request: the key (HTTP-2, HTTP-3) and the body (HTTP-4, HTTP-5).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::{BodyExt as _, Limited};
use retryproof_core::Activity;
use retryproof_http::{IdempotencyFilter, Methods, Policy};

use crate::world::{Answer, Runs, STD, filter, filter_with, post, request, send};

/// Echoes the body, and counts the runs.
fn echo(filter: &IdempotencyFilter) -> (Router, Runs) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |body: Bytes| async move {
            runs.run();
            body
        }
    };
    (Router::new().route("/pay", any(handler).layer(filter.guard(STD.methods(Methods::All)))), runs)
}

/// A body that sends these frames, the last of which can be an error. It has no known length, and
/// counts how often it is polled.
struct Frames {
    frames: VecDeque<Result<Frame<Bytes>, std::io::Error>>,
    read: Runs,
}

impl Frames {
    fn of<const N: usize>(pieces: [usize; N]) -> Self {
        let frame = |len| Ok(Frame::data(Bytes::from(vec![b'x'; len])));
        Self { frames: pieces.into_iter().map(frame).collect(), read: Runs::default() }
    }

    fn then_break(mut self) -> Self {
        self.frames.push_back(Err(std::io::Error::other("reset")));
        self
    }
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.read.run();
        Poll::Ready(self.frames.pop_front())
    }
}

#[tokio::test(start_paused = true)]
async fn http_2_hostile_keys_are_refused_and_nothing_runs() {
    let filter = filter();
    let (app, runs) = echo(&filter);
    let long = "k".repeat(256);
    let very_long = "k".repeat(1025);
    for hostile in [
        "", " ", "\"\"", "\"  \"", "a,b", "a b", "\"a", "\"a\"b", "\"a\" b", "\"a\\n\"", "\u{e9}",
        "k\u{ff}", &long, &very_long, "\"a\";;", "\t", "k\tk",
    ] {
        let answer = send(&app, post("/pay", hostile, "")).await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::BAD_REQUEST, "key-invalid"),
            "{hostile:?}"
        );
        assert!(
            hostile.trim().len() < 3 || !answer.text().contains(hostile),
            "the key is echoed: {hostile:?}"
        );
    }
    let twice =
        request(Method::POST, "/pay", &[("idempotency-key", "a"), ("idempotency-key", "a")], "");
    assert_eq!(send(&app, twice).await.code(), "key-invalid");
    assert_eq!(runs.count(), 0);
    assert!(matches!(
        filter.engine().activity(),
        Activity { running: 0, waiting: 0, beating: 0, .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn http_2_every_legal_spelling_is_one_key() {
    let (app, runs) = echo(&filter());
    for spelling in ["k-1", "\"k-1\"", " k-1 ", "\"k-1\";v=2"] {
        assert_eq!(
            send(&app, post("/pay", spelling, "")).await.status,
            StatusCode::OK,
            "{spelling:?}"
        );
    }
    assert_eq!(runs.count(), 1);
    for longest in ["k".repeat(255), format!("\"{}\"", "\\\\".repeat(255))] {
        assert_eq!(send(&app, post("/pay", &longest, "")).await.status, StatusCode::OK);
    }
    assert_eq!(runs.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn http_2_the_key_header_is_configurable() {
    let filter = filter_with(|config| config.web.key_header = "X-Request-Key".to_owned());
    let (app, _) = echo(&filter);
    let missing = send(&app, post("/pay", "k", "")).await;
    assert_eq!(missing.code(), "key-missing");
    assert!(missing.text().contains("X-Request-Key"), "{}", missing.text());
    let keyed = request(Method::POST, "/pay", &[("x-request-key", "k")], "");
    assert_eq!(send(&app, keyed).await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn http_3_a_missing_key_is_refused_for_every_method() {
    let (app, runs) = echo(&filter());
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::GET] {
        let answer = send(&app, request(method, "/pay", &[], "x")).await;
        assert_eq!((answer.status, answer.code()), (StatusCode::BAD_REQUEST, "key-missing"));
        assert!(answer.text().contains("\"retryable\":false"));
    }
    assert_eq!(runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn http_3_where_keys_are_optional_a_keyless_request_passes_unbuffered() {
    let filter = filter_with(|config| {
        config.web.required = false;
        config.web.max_body_bytes = 4;
    });
    let (app, runs) = echo(&filter);
    // This body is longer than the limit, but the filter does not check a request without a key.
    let answer = send(&app, request(Method::POST, "/pay", &[], "longer than four")).await;
    assert_eq!(answer.text(), "longer than four");
    assert!(
        answer.header("idempotent-replayed").is_none() && answer.header("cache-control").is_none()
    );
    // The body of this request never ends. If the filter buffered it, the request would never be
    // answered.
    let endless = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    let guarded = tower::Layer::layer(&filter.guard(STD), endless);
    let (_open, pending) = tokio::io::duplex(64);
    let body = Body::new(StreamOf(pending));
    let passed =
        tower::ServiceExt::oneshot(guarded, Request::post("/pay").body(body).unwrap()).await;
    assert!(passed.is_ok());
    // The filter does check a request with a key, and refuses its body as too long.
    assert_eq!(send(&app, post("/pay", "k", "longer than four")).await.code(), "body-too-large");
    assert_eq!(runs.count(), 1);
}

/// A body that stays pending as long as the other end of its stream exists.
struct StreamOf(tokio::io::DuplexStream);

impl http_body::Body for StreamOf {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let mut storage = [0; 8];
        let mut buffer = tokio::io::ReadBuf::new(&mut storage);
        match tokio::io::AsyncRead::poll_read(Pin::new(&mut self.0), cx, &mut buffer) {
            Poll::Ready(Ok(())) => Poll::Ready(None),
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http_4_a_declared_body_over_the_limit_is_refused_before_a_byte_is_read() {
    let filter = filter_with(|config| config.web.max_body_bytes = 8);
    let (app, runs) = echo(&filter);
    assert_eq!(send(&app, post("/pay", "k", "12345678")).await.text(), "12345678");
    let refused = send(&app, post("/pay", "l", "123456789")).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"));
    assert!(refused.text().contains('8'), "{}", refused.text());
    assert_eq!(refused.header("connection"), Some("close"));
    let mut http_2 = post("/pay", "l", "123456789");
    *http_2.version_mut() = Version::HTTP_2;
    assert_eq!(send(&app, http_2).await.header("connection"), None);
    assert_eq!(runs.count(), 1);
    // No record was left: the same key accepts a smaller body.
    assert_eq!(send(&app, post("/pay", "l", "12")).await.text(), "12");
}

#[tokio::test(start_paused = true)]
async fn http_4_a_streamed_body_is_cut_off_at_the_limit() {
    let filter = filter_with(|config| config.web.max_body_bytes = 8);
    let (app, runs) = echo(&filter);
    assert_eq!(
        send(&app, post("/pay", "k", Body::new(Frames::of([3, 5])))).await.text(),
        "x".repeat(8)
    );
    let over = Frames::of([3, 5, 1, 1, 1]);
    let read = over.read.clone();
    let refused = send(&app, post("/pay", "l", Body::new(over))).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"));
    assert_eq!(read.count(), 3, "read only up to the byte over the limit");
    assert_eq!(runs.count(), 1);
    assert_eq!(send(&app, post("/pay", "l", "12")).await.text(), "12");
}

#[tokio::test(start_paused = true)]
async fn http_4_a_smaller_limit_outside_is_413_too() {
    let (app, runs) = echo(&filter());
    let limited = Body::new(Limited::new(Body::from("123456"), 4));
    assert_eq!(send(&app, post("/pay", "k", limited)).await.code(), "body-too-large");
    // A limit from a layer has the same effect, also on a body without a known length.
    let layered = app.layer(tower_http::limit::RequestBodyLimitLayer::new(4));
    let streamed = Body::new(Frames::of([3, 3]));
    let refused = send(&layered, post("/pay", "k", streamed)).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"));
    assert_eq!(runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn http_5_a_broken_upload_runs_nothing_and_leaves_no_record() {
    let filter = filter();
    let (app, runs) = echo(&filter);
    let broken = Body::new(Frames::of([3]).then_break());
    let refused = send(&app, post("/pay", "k", broken)).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::BAD_REQUEST, "body-unreadable"));
    assert_eq!(runs.count(), 0);
    assert_eq!(send(&app, post("/pay", "k", "whole")).await.text(), "whole");
}

#[tokio::test(start_paused = true)]
async fn http_5_the_handler_reads_the_same_bytes_and_trailers_again() {
    let handler = |request: Request<Body>| async move {
        let hint = http_body::Body::size_hint(request.body()).lower();
        let whole = request.into_body().collect().await.unwrap();
        let sum = whole.trailers().map(|t| t["x-sum"].to_str().unwrap().to_owned());
        format!("{hint} {sum:?} {:?}", whole.to_bytes())
    };
    let app = Router::new().route("/pay", any(handler).layer(filter().guard(STD)));
    let mut frames = Frames::of([2, 3]);
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "5".parse().unwrap());
    frames.frames.push_back(Ok(Frame::trailers(trailers)));
    let answer = send(&app, post("/pay", "k", Body::new(frames))).await;
    assert_eq!(answer.text(), "5 Some(\"5\") b\"xxxxx\"");
    let binary: Vec<u8> = (0..=255).collect();
    let (app, _) = echo(&filter());
    assert_eq!(send(&app, post("/pay", "k", binary.clone())).await.body, binary);
    assert_eq!(send(&app, post("/pay", "k", binary.clone())).await.body, binary);
    assert_eq!(send(&app, post("/pay", "empty", "")).await.body, "");
}

#[tokio::test(start_paused = true)]
async fn http_1_routes_without_a_guard_pass_with_a_key() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move { runs.run().to_string() }
    };
    let app = Router::new().route("/open", any(handler.clone())).route(
        "/pay",
        any(handler).layer(filter().guard(Policy::new("pay").methods(Methods::All))),
    );
    assert_eq!(send(&app, post("/open", "k", "")).await.text(), "1");
    assert_eq!(send(&app, post("/open", "k", "")).await.text(), "2");
    // Any method can be guarded.
    for (method, text) in
        [(Method::GET, "3"), (Method::DELETE, "4"), (Method::from_bytes(b"CHARGE").unwrap(), "5")]
    {
        let key = format!("k-{method}");
        let request = || request(method.clone(), "/pay", &[("idempotency-key", key.as_str())], "");
        assert_eq!(send(&app, request()).await.text(), text);
        assert!(send(&app, request()).await.is_replay());
    }
}

#[tokio::test(start_paused = true)]
async fn http_11_a_head_request_gets_the_fields_of_a_problem_without_its_body() {
    let filter = filter();
    let service = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    let guarded = tower::Layer::layer(&filter.guard(STD.methods(Methods::All)), service);
    let request = Request::head("/pay").body(Body::empty()).unwrap();
    let Ok(response) = tower::ServiceExt::oneshot(guarded, request).await;
    let answer = Answer::of(response).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert!(answer.body.is_empty());
    assert!(answer.header("content-length").is_some_and(|length| length != "0"));
}
