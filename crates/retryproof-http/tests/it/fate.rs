// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fate of a response: stored, released, held, or a tombstone (HTTP-6, HTTP-7, HTTP-13).
//!
//! This file is over 400 lines long because the tests of all fates share the same scripted bodies.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post as on_post};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use retryproof_core::{Attempt, Recorded};
use retryproof_http::axum::Lease;
use retryproof_http::{AnswerFate, Fate, Hold, IdempotencyFilter, Methods, Policy, Release};
use tower::{Layer as _, ServiceExt as _};

use crate::world::{Annotated, Answer, Runs, STD, filter, filter_with, post, request, send};

static POLICY: Policy = STD;

/// Creates a guarded route whose handler calls `answer` with the number of its run.
fn app<R>(
    filter: &IdempotencyFilter,
    answer: impl Fn(usize) -> R + Clone + Send + Sync + 'static,
) -> (Router, Runs)
where
    R: IntoResponse + Send + 'static,
{
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move { answer(runs.run()) }
    };
    (Router::new().route("/pay", any(handler).layer(filter.guard(STD))), runs)
}

/// A streamed body, without a known length: pieces, then perhaps trailers, an error or a panic.
struct Stream(VecDeque<Piece>);

enum Piece {
    Data(usize),
    Trailers(HeaderMap),
    Broken,
    Panic,
}

impl Stream {
    fn of<const N: usize>(pieces: [Piece; N]) -> Body {
        Body::new(Self(pieces.into()))
    }
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Poll::Ready(self.0.pop_front().map(|piece| match piece {
            Piece::Data(len) => Ok(Frame::data(Bytes::from(vec![b'x'; len]))),
            Piece::Trailers(map) => Ok(Frame::trailers(map)),
            Piece::Broken => Err(std::io::Error::other("broken")),
            Piece::Panic => panic!("the body panics"),
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_whatever_is_returned_is_stored_4xx_and_5xx_included() {
    for status in [200, 204, 301, 400, 404, 409, 422, 500, 503] {
        let status = StatusCode::from_u16(status).unwrap();
        let (app, runs) = app(&filter(), move |run| {
            (status, if status == 204 { String::new() } else { run.to_string() })
        });
        let first = send(&app, post("/pay", "k", "")).await;
        let again = send(&app, post("/pay", "k", "")).await;
        assert_eq!((first.status, again.status), (status, status));
        assert_eq!(first.body, again.body);
        assert!(!first.is_replay() && again.is_replay());
        assert_eq!(runs.count(), 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_a_marked_release_is_sent_unstored_and_frees_the_key() {
    let (app, runs) = app(&filter(), |run| match run {
        1 => (StatusCode::TOO_MANY_REQUESTS, Release, "try later").into_response(),
        _ => "done".into_response(),
    });
    let first = send(&app, post("/pay", "k", "")).await;
    assert_eq!((first.status, first.text()), (StatusCode::TOO_MANY_REQUESTS, "try later"));
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "done");
    assert!(send(&app, post("/pay", "k", "")).await.is_replay());
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn http_7_a_marked_hold_is_sent_unstored_and_the_lease_runs_out() {
    let (app, runs) = app(&filter(), |run| match run {
        1 => (StatusCode::BAD_GATEWAY, Hold, "unknown").into_response(),
        _ => "done".into_response(),
    });
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "unknown");
    // The duplicate waits for 2 s, but the lease lasts for 5 s, so the duplicate gets the answer
    // `in-flight`, and no handler runs.
    let busy = send(&app, post("/pay", "k", "")).await;
    assert_eq!((busy.status, busy.code()), (StatusCode::CONFLICT, "in-flight"));
    assert_eq!(busy.header("retry-after"), Some("3"));
    assert_eq!(runs.count(), 1);
    // Two seconds later, the lease ends before the next duplicate's wait does, so this duplicate
    // takes over.
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "done");
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn http_7_the_run_after_a_hold_knows_that_it_is_a_takeover() {
    let handler = Annotated(&POLICY, |lease: Lease| async move {
        match lease.attempt() {
            Attempt::First => (Hold, "first").into_response(),
            Attempt::Takeover => "takeover".into_response(),
        }
    });
    let app = Router::new().route("/pay", on_post(handler)).with_state(filter());
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "first");
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "takeover");
}

#[tokio::test(start_paused = true)]
async fn http_7_an_error_type_states_its_own_fate() {
    #[derive(Debug)]
    enum PayError {
        Throttled,
        TimedOut,
        Declined,
    }
    impl Fate for PayError {
        fn fate(&self) -> AnswerFate {
            match self {
                Self::Throttled => AnswerFate::Release,
                Self::TimedOut => AnswerFate::Hold,
                Self::Declined => AnswerFate::Store,
            }
        }
    }
    impl IntoResponse for PayError {
        fn into_response(self) -> Response {
            (StatusCode::BAD_GATEWAY, self.fate(), format!("{self:?}")).into_response()
        }
    }
    for (make, replayed, runs_again) in [
        ((|| PayError::Throttled) as fn() -> PayError, false, true),
        (|| PayError::TimedOut, false, false),
        (|| PayError::Declined, true, false),
    ] {
        let (app, runs) = app(&filter(), move |_| Err::<&str, _>(make()));
        assert_eq!(send(&app, post("/pay", "k", "")).await.status, StatusCode::BAD_GATEWAY);
        assert_eq!(send(&app, post("/pay", "k", "")).await.is_replay(), replayed);
        assert_eq!(runs.count() == 2, runs_again, "{:?}", make());
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_an_error_of_the_inner_service_releases_and_propagates() {
    let runs = Runs::default();
    let service = {
        let runs = runs.clone();
        tower::service_fn(move |_: Request<Body>| {
            let run = runs.run();
            async move {
                if run == 1 {
                    Err("broken service")
                } else {
                    Ok(http::Response::new(Body::from(run.to_string())))
                }
            }
        })
    };
    let guarded = filter().guard(STD).layer(service);
    let first = guarded.clone().oneshot(post("/pay", "k", "")).await;
    assert_eq!(first.err(), Some("broken service"));
    let second = Answer::of(guarded.clone().oneshot(post("/pay", "k", "")).await.unwrap()).await;
    assert_eq!(second.text(), "2");
    assert!(Answer::of(guarded.oneshot(post("/pay", "k", "")).await.unwrap()).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn http_7_a_panic_releases_and_is_raised_again_on_the_connection() {
    let (app, runs) = app(&filter(), |run| {
        assert!(run > 1, "the first run panics");
        "done"
    });
    let guarded = app.clone().layer(tower_http::catch_panic::CatchPanicLayer::new());
    let first = send(&guarded, post("/pay", "k", "")).await;
    assert_eq!(first.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!first.is_replay());
    assert_eq!(send(&guarded, post("/pay", "k", "")).await.text(), "done");
    assert_eq!(runs.count(), 2);
    // A panic reaches the connection's task, because no layer catches it here.
    let (app, _) = self::app(&filter(), |run| {
        assert!(run > 1, "canary {run}");
    });
    let connection = tokio::spawn(async move { send(&app, post("/pay", "k", "")).await });
    let panic = connection.await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("canary 1"));
}

#[tokio::test(start_paused = true)]
async fn http_7_a_handler_that_panics_before_its_first_await_releases_too() {
    let runs = Runs::default();
    let service = {
        let runs = runs.clone();
        tower::service_fn(move |_: Request<Body>| {
            let run = runs.run();
            assert!(run > 1, "called, not polled");
            async move { Ok::<_, Infallible>(http::Response::new(Body::from(run.to_string()))) }
        })
    };
    let guarded = filter().guard(STD).layer(service);
    let first = AssertUnwindSafe(guarded.clone().oneshot(post("/pay", "k", "")));
    assert!(tokio::spawn(first.0).await.unwrap_err().is_panic());
    assert_eq!(Answer::of(guarded.oneshot(post("/pay", "k", "")).await.unwrap()).await.text(), "2");
}

#[tokio::test(start_paused = true)]
async fn http_6_cmp_4_the_response_says_that_it_was_recorded() {
    let recorded = async |app: &Router, key: &str| {
        let Ok(response) = app.clone().oneshot(post("/pay", key, "")).await;
        response.extensions().get::<Recorded>().copied()
    };
    let (stored, _) = app(&filter(), |_| "done");
    assert_eq!(recorded(&stored, "k").await, Some(Recorded::Yes));
    assert_eq!(recorded(&stored, "k").await, None, "a replay records nothing");
    let (sse, _) = app(&filter(), |_| ([("content-type", "text/event-stream")], "data: 1\n\n"));
    assert_eq!(recorded(&sse, "k").await, Some(Recorded::Tombstone));
    let (released, _) = app(&filter(), |_| (Release, "released"));
    assert_eq!(recorded(&released, "k").await, None);
}

/// Sends a first request and one duplicate, and checks that the duplicate is refused because the
/// record is a tombstone.
async fn expect_tombstone(app: &Router, runs: &Runs) -> (Answer, Answer) {
    let first = send(app, post("/pay", "k", "")).await;
    let again = send(app, post("/pay", "k", "")).await;
    assert_eq!((again.status, again.code()), (StatusCode::CONFLICT, "result-not-replayable"));
    assert_eq!(again.header("retry-after"), None);
    assert!(again.text().contains("\"retryable\":false"));
    assert_eq!(runs.count(), 1);
    // A duplicate with a different body gets 422, as without a tombstone.
    assert_eq!(send(app, post("/pay", "k", "other")).await.code(), "fingerprint-mismatch");
    (first, again)
}

#[tokio::test(start_paused = true)]
async fn http_13_a_response_of_known_length_over_the_limit_goes_out_whole_as_a_tombstone() {
    let filter = filter_with(|config| {
        config.web.max_response_bytes = 1000;
        config.web.in_flight_status = 503;
    });
    let headers = [("location", "/payments/17"), ("x-kept", "yes")];
    let (app, runs) = app(&filter, move |_| (StatusCode::CREATED, headers, "x".repeat(1001)));
    let (first, again) = expect_tombstone(&app, &runs).await;
    assert_eq!((first.status, first.body.len()), (StatusCode::CREATED, 1001));
    assert!(
        again.text().contains(r#""original-status":201,"location":"/payments/17""#),
        "{}",
        again.text()
    );
}

#[tokio::test(start_paused = true)]
async fn http_13_exactly_the_limit_is_stored() {
    let filter = filter_with(|config| config.web.max_response_bytes = 1000);
    let (app, runs) = app(&filter, |_| Stream::of([Piece::Data(400), Piece::Data(600)]));
    assert_eq!(send(&app, post("/pay", "k", "")).await.body.len(), 1000);
    let again = send(&app, post("/pay", "k", "")).await;
    assert!(again.is_replay() && again.body.len() == 1000);
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_13_a_streamed_response_over_the_limit_goes_out_whole_with_its_trailers() {
    let filter = filter_with(|config| config.web.max_response_bytes = 1000);
    let (app, runs) = app(&filter, |_| {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "1300".parse().unwrap());
        Stream::of([
            Piece::Data(600),
            Piece::Data(600),
            Piece::Data(100),
            Piece::Trailers(trailers),
        ])
    });
    let (first, _) = expect_tombstone(&app, &runs).await;
    assert_eq!(first.body.len(), 1300);
    assert_eq!(first.trailers.unwrap()["x-sum"], "1300");
}

#[tokio::test(start_paused = true)]
async fn http_13_after_the_tombstone_the_stream_may_break_and_the_record_stays() {
    let filter = filter_with(|config| config.web.max_response_bytes = 10);
    let (app, runs) = app(&filter, |_| Stream::of([Piece::Data(11), Piece::Broken]));
    let Ok(response) = app.clone().oneshot(post("/pay", "k", "")).await;
    let mut body = response.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 11);
    assert!(body.frame().await.unwrap().is_err());
    assert_eq!(send(&app, post("/pay", "k", "")).await.code(), "result-not-replayable");
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_13_event_streams_and_upgrades_pass_untouched_as_tombstones() {
    for make in [
        (|| ([("content-type", "text/event-stream; charset=utf-8")], "data: 1\n\n").into_response())
            as fn() -> Response,
        || ([("content-type", "TEXT/Event-Stream")], "data: 1\n\n").into_response(),
        || StatusCode::SWITCHING_PROTOCOLS.into_response(),
    ] {
        let (app, runs) = app(&filter(), move |_| {
            let mut response = make();
            response.extensions_mut().insert("an upgrade's own extension");
            response
        });
        let Ok(first) = app.clone().oneshot(post("/pay", "k", "")).await;
        assert!(first.extensions().get::<&str>().is_some());
        assert_eq!(send(&app, post("/pay", "k", "")).await.code(), "result-not-replayable");
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_a_tunnel_is_a_tombstone() {
    let service = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    });
    let guarded = filter().guard(STD).layer(service);
    let connect = || request(Method::CONNECT, "/tunnel", &[("idempotency-key", "k")], "");
    assert_eq!(guarded.clone().oneshot(connect()).await.unwrap().status(), StatusCode::OK);
    let again = Answer::of(guarded.oneshot(connect()).await.unwrap()).await;
    assert_eq!(again.code(), "result-not-replayable");
}

#[tokio::test(start_paused = true)]
async fn http_13_an_endless_stream_is_not_waited_for() {
    struct Endless;
    impl http_body::Body for Endless {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }
    let (app, runs) =
        app(&filter(), |_| ([("content-type", "text/event-stream")], Body::new(Endless)));
    let Ok(response) = app.clone().oneshot(post("/pay", "k", "")).await;
    let mut body = response.into_body();
    let pending = poll_fn(|cx| {
        Poll::Ready(http_body::Body::poll_frame(Pin::new(&mut body), cx).is_pending())
    })
    .await;
    assert!(pending, "the client has the head and waits for events");
    assert_eq!(send(&app, post("/pay", "k", "")).await.code(), "result-not-replayable");
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_13_a_body_that_breaks_off_is_a_tombstone_and_500() {
    for pieces in [|| [Piece::Data(5), Piece::Broken], || [Piece::Data(5), Piece::Panic]] {
        let (app, runs) = app(&filter(), move |_| {
            (StatusCode::CREATED, [("location", "/p/1")], Stream::of(pieces()))
        });
        let (first, again) = expect_tombstone(&app, &runs).await;
        assert_eq!(
            (first.status, first.code()),
            (StatusCode::INTERNAL_SERVER_ERROR, "response-failed")
        );
        assert!(first.text().contains("\"retryable\":false"));
        assert!(again.text().contains(r#""original-status":201,"location":"/p/1""#));
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_a_body_that_gives_more_than_it_said_counts_as_broken() {
    struct Liar(usize);
    impl http_body::Body for Liar {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0 += 1;
            Poll::Ready((self.0 < 100).then(|| Ok(Frame::data(Bytes::from_static(&[b'x'; 50])))))
        }
        fn size_hint(&self) -> http_body::SizeHint {
            http_body::SizeHint::with_exact(50)
        }
    }
    let filter = filter_with(|config| config.web.max_response_bytes = 100);
    let (app, runs) = app(&filter, |_| Body::new(Liar(0)));
    let (first, _) = expect_tombstone(&app, &runs).await;
    assert_eq!(first.code(), "response-failed");
}

/// A body that gives up to five bytes and declares ten.
struct Short(usize);

impl http_body::Body for Short {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = std::mem::take(&mut self.0);
        Poll::Ready((data > 0).then(|| Ok(Frame::data(Bytes::from(vec![b'x'; data])))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(10)
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_a_body_that_ends_before_its_declared_size_counts_as_broken() {
    for given in [0, 5] {
        let (app, runs) = app(&filter(), move |_| {
            (StatusCode::CREATED, [("location", "/p/1")], Body::new(Short(given)))
        });
        let (first, again) = expect_tombstone(&app, &runs).await;
        assert_eq!(
            (first.status, first.code()),
            (StatusCode::INTERNAL_SERVER_ERROR, "response-failed")
        );
        assert!(again.text().contains(r#""original-status":201,"location":"/p/1""#));
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_a_size_that_is_declared_without_a_body_is_no_broken_body() {
    for (method, status) in
        [(Method::HEAD, StatusCode::OK), (Method::POST, StatusCode::NOT_MODIFIED)]
    {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let mut response = http::Response::new(Body::new(Short(0)));
            *response.status_mut() = status;
            Ok::<_, Infallible>(response)
        });
        let guarded = filter().guard(STD.methods(Methods::All)).layer(service);
        for is_replay in [false, true] {
            let call = request(method.clone(), "/pay", &[("idempotency-key", "k")], "");
            let answer = Answer::of(guarded.clone().oneshot(call).await.unwrap()).await;
            assert_eq!((answer.status, answer.is_replay()), (status, is_replay), "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_a_mark_wins_over_a_tombstone() {
    let filter = filter_with(|config| config.web.max_response_bytes = 10);
    let (app, runs) = app(&filter, |_| (Release, "x".repeat(11)));
    assert_eq!(send(&app, post("/pay", "k", "")).await.body.len(), 11);
    assert_eq!(send(&app, post("/pay", "k", "")).await.body.len(), 11);
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn http_13_a_tombstone_lasts_for_the_ttl_from_completion() {
    let (app, runs) = app(&filter(), |_| ([("content-type", "text/event-stream")], ""));
    send(&app, post("/pay", "k", "")).await;
    tokio::time::advance(Duration::from_secs(3599)).await;
    assert_eq!(send(&app, post("/pay", "k", "")).await.code(), "result-not-replayable");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(send(&app, post("/pay", "k", "")).await.status, StatusCode::OK);
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn cmp_9_a_hook_that_panics_is_a_value_that_cannot_be_encoded() {
    let engine = filter().engine().clone();
    let filter = IdempotencyFilter::builder(engine)
        .callers_share_keys()
        .edit_stored(|_, _| panic!("the hook panics"))
        .build()
        .unwrap();
    let (app, runs) = app(&filter, |_| (StatusCode::CREATED, [("location", "/p/1")], "done"));
    // The first caller's completion fails. With log-and-return, its response is sent nevertheless.
    let Ok(first) = app.clone().oneshot(post("/pay", "k", "")).await;
    assert_eq!(first.extensions().get::<Recorded>(), Some(&Recorded::Tombstone));
    assert_eq!(Answer::of(first).await.text(), "done");
    let again = send(&app, post("/pay", "k", "")).await;
    assert_eq!(again.code(), "result-not-replayable");
    // The hook panicked before it decided which header fields may be kept, so the tombstone keeps
    // only the status (HTTP-13).
    assert!(again.text().contains("\"original-status\":201"), "{}", again.text());
    assert!(!again.text().contains("/p/1"), "{}", again.text());
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_13_a_tombstone_tells_the_status_though_its_hook_panics() {
    let filter = IdempotencyFilter::builder(filter().engine().clone())
        .callers_share_keys()
        .edit_stored(|_, _| panic!("the hook panics"))
        .build()
        .unwrap();
    let (app, runs) = app(&filter, |_| {
        (
            StatusCode::ACCEPTED,
            [("content-type", "text/event-stream"), ("location", "/p/1")],
            "data: 1\n\n",
        )
    });
    let (first, again) = expect_tombstone(&app, &runs).await;
    assert_eq!(first.text(), "data: 1\n\n");
    assert!(again.text().contains("\"original-status\":202"), "{}", again.text());
    assert!(!again.text().contains("/p/1"), "{}", again.text());
}
