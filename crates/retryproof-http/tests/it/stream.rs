// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bodies that are sent without being collected: those that are marked as streams, and those that
//! take too long to end (HTTP-7, HTTP-13).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use retryproof_core::Recorded;
use retryproof_http::{AnswerFate, Stream};
use tokio::time::{Instant, Interval, interval};
use tower::ServiceExt as _;

use crate::world::{Runs, STD, filter_with, post, send};

const TICK: Duration = Duration::from_millis(100);
const LINE: &[u8] = b"{\"tick\":1}\n";

/// A body that sends a line at intervals, and records its end.
struct Ticks {
    timer: Interval,
    left: Option<usize>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    lines: AtomicUsize,
    dropped: AtomicBool,
}

impl Seen {
    /// Creates a body of this many lines, or an endless one.
    fn ticks(self: &Arc<Self>, lines: Option<usize>) -> Body {
        Body::new(Ticks { timer: interval(TICK), left: lines, seen: Arc::clone(self) })
    }

    fn lines(&self) -> usize {
        self.lines.load(Ordering::SeqCst)
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        self.seen.dropped.store(true, Ordering::SeqCst);
    }
}

impl http_body::Body for Ticks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == Some(0) {
            return Poll::Ready(None);
        }
        std::task::ready!(self.timer.poll_tick(cx));
        self.left = self.left.map(|left| left - 1);
        self.seen.lines.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(LINE)))))
    }

    /// Returns the length, if it is known.
    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::new, |left| SizeHint::with_exact((left * LINE.len()) as u64))
    }
}

/// Creates a guarded route that answers with NDJSON, which the guard collects for at most a second.
fn app(
    fate: AnswerFate,
    lines: Option<usize>,
    max_response_bytes: usize,
) -> (Router, Runs, Arc<Seen>) {
    let filter = filter_with(|config| {
        config.web.collect_timeout = Duration::from_secs(1);
        config.web.max_response_bytes = max_response_bytes;
    });
    let (runs, seen) = (Runs::default(), Arc::<Seen>::default());
    let handler = {
        let (runs, seen) = (runs.clone(), Arc::clone(&seen));
        move || async move {
            runs.run();
            ([("content-type", "application/x-ndjson")], fate, seen.ticks(lines)).into_response()
        }
    };
    (Router::new().route("/feed", any(handler).layer(filter.guard(STD))), runs, seen)
}

async fn first(app: &Router) -> (Response, Duration) {
    let began = Instant::now();
    let Ok(response) = app.clone().oneshot(post("/feed", "k", "")).await;
    (response, began.elapsed())
}

/// Checks that a duplicate is refused, however the stream ended.
async fn expect_done(app: &Router, runs: &Runs) {
    let again = send(app, post("/feed", "k", "")).await;
    assert_eq!(again.code(), "result-not-replayable");
    assert!(again.text().contains("\"original-status\":200"), "{}", again.text());
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_7_an_answer_marked_stream_is_recorded_and_sent_as_it_comes() {
    for lines in [None, Some(3)] {
        let (app, runs, seen) = app(Stream, lines, 1 << 20);
        let (response, took) = first(&app).await;
        assert!(took < TICK, "the guard does not wait for the body");
        assert_eq!(response.extensions().get::<Recorded>(), Some(&Recorded::Tombstone));
        assert_eq!(seen.lines(), 0);
        expect_done(&app, &runs).await;
        let mut body = response.into_body();
        for _ in 0..3 {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), LINE);
        }
        if lines.is_some() {
            assert!(body.frame().await.is_none());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_a_body_whose_end_takes_too_long_is_sent_as_it_comes() {
    // The first body is endless. The second has a known length within the limit.
    for lines in [None, Some(30)] {
        let (app, runs, _) = app(AnswerFate::Store, lines, 1 << 20);
        let (response, took) = first(&app).await;
        assert!((1000..1200).contains(&took.as_millis()), "{took:?}");
        expect_done(&app, &runs).await;
        let mut body = response.into_body();
        let began = Instant::now();
        let collected = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(collected, LINE.repeat(11), "the collected part is sent at once");
        assert!(began.elapsed() < TICK);
        let rest = async {
            let mut rest = 0;
            while let Some(frame) = body.frame().await {
                rest += frame.unwrap().into_data().unwrap().len() / LINE.len();
                if lines.is_none() && rest == 19 {
                    break;
                }
            }
            rest
        };
        assert_eq!(rest.await, 19, "and the rest follows");
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_a_slow_body_that_ends_in_time_is_stored() {
    let (app, runs, _) = app(AnswerFate::Store, Some(5), 1 << 20);
    assert_eq!(send(&app, post("/feed", "k", "")).await.body, LINE.repeat(5));
    assert!(send(&app, post("/feed", "k", "")).await.is_replay());
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_13_an_endless_body_ends_with_its_client() {
    let (app, runs, seen) = app(AnswerFate::Store, None, 1 << 20);
    let (response, _) = first(&app).await;
    drop(response);
    assert!(seen.dropped.load(Ordering::SeqCst), "nothing is left behind");
    expect_done(&app, &runs).await;
}

#[tokio::test(start_paused = true)]
async fn http_12_http_13_a_client_that_leaves_while_an_endless_body_is_collected_leaves_no_task() {
    let (app, runs, seen) = app(AnswerFate::Store, None, 1 << 20);
    let call = tokio::spawn(app.clone().oneshot(post("/feed", "k", "")));
    tokio::time::sleep(3 * TICK).await;
    call.abort();
    assert!(!seen.dropped.load(Ordering::SeqCst), "the client's disconnect does not lose the work");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(seen.dropped.load(Ordering::SeqCst));
    expect_done(&app, &runs).await;
}

#[tokio::test(start_paused = true)]
async fn http_13_what_goes_over_the_limit_first_is_chained_before_the_rest() {
    let (app, runs, _) = app(AnswerFate::Store, None, 3 * LINE.len() + 1);
    let (response, took) = first(&app).await;
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert!(http_body::Body::size_hint(response.body()).lower() >= (4 * LINE.len()) as u64);
    assert!(!http_body::Body::is_end_stream(response.body()));
    expect_done(&app, &runs).await;
    let mut body = response.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), LINE.repeat(4));
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), LINE);
}
