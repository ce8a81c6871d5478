// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the gRPC guard with frames that are built by hand: requests that tonic would not send, and
//! responses that tonic's services never give. Calls through tonic and real sockets are tested in
//! `examples/grpc`.
//!
//! This file is over 400 lines long because each form of a response is built by hand.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use retryproof_core::config::StoredStatuses;
use retryproof_http::grpc::{FATE, refusal};
use retryproof_http::{AnswerFate, GuardedBody, Policy};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt as _, service_fn};

use crate::world::{Answer, Runs, STD, filter, filter_with};

const PATH: &str = "/pay.v1.Payments/Charge";

/// One frame of an answer's body.
#[derive(Debug, Clone)]
enum Piece {
    Data(&'static [u8]),
    Trailers(&'static [(&'static str, &'static str)]),
    Error,
    Panic,
    /// Waits for a signal from the test.
    Wait(Arc<Notify>),
}

/// A body that sends these pieces.
struct Script {
    pieces: VecDeque<Piece>,
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl http_body::Body for Script {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                std::task::ready!(waiting.as_mut().poll(cx));
                self.waiting = None;
            }
            return Poll::Ready(match self.pieces.pop_front() {
                None => None,
                Some(Piece::Data(data)) => Some(Ok(Frame::data(Bytes::from_static(data)))),
                Some(Piece::Trailers(lines)) => {
                    let mut trailers = HeaderMap::new();
                    for (name, value) in lines {
                        trailers.append(*name, HeaderValue::from_static(value));
                    }
                    Some(Ok(Frame::trailers(trailers)))
                }
                Some(Piece::Error) => Some(Err(io::Error::other("the answer breaks off"))),
                Some(Piece::Panic) => panic!("the body panics"),
                Some(Piece::Wait(until)) => {
                    self.waiting = Some(Box::pin(async move { until.notified().await }));
                    continue;
                }
            });
        }
    }
}

/// Creates a method that always answers with these frames, and counts its runs.
fn method(
    runs: &Runs,
    headers: &'static [(&'static str, &'static str)],
    pieces: Vec<Piece>,
) -> impl tower::Service<
    Request<GuardedBody<Body>>,
    Response = Response<Script>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ 'static {
    let runs = runs.clone();
    service_fn(move |request: Request<GuardedBody<Body>>| {
        let (run, pieces) = (runs.run(), pieces.clone());
        async move {
            assert_eq!(
                request.headers()["te"],
                "trailers",
                "the parts of a request that gRPC needs stay"
            );
            let sent = request.into_body().collect().await.expect("the request is whole");
            assert_eq!(sent.to_bytes(), &b"\0\0\0\0\x01a"[..]);
            let mut response = Response::builder();
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            if headers.iter().all(|(name, _)| *name != "content-type") {
                response = response.header("content-type", "application/grpc");
            }
            let body = Script { pieces: pieces.into(), waiting: None };
            Ok(response.header("x-run", run).body(body).expect("a response"))
        }
    })
}

fn call(path: &str, key: &str) -> Request<Body> {
    Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("idempotency-key", key)
        .body(Body::from(&b"\0\0\0\0\x01a"[..]))
        .expect("a request")
}

/// Sends a call, and reads its whole response.
macro_rules! answer {
    ($service:expr, $call:expr) => {{
        let Ok(response) = $service.clone().oneshot($call).await;
        Answer::of(response).await
    }};
}

const MESSAGE: &[u8] = b"\0\0\0\0\x03abc";
const OK: Piece = Piece::Trailers(&[("grpc-status", "0")]);

#[tokio::test(start_paused = true)]
async fn http_8_a_unary_answer_is_replayed_with_its_metadata_and_every_line_of_its_trailers() {
    let runs = Runs::default();
    let trailers =
        &[("grpc-status", "0"), ("x-cost", "3"), ("x-cost", "4"), ("idempotent-replayed", "true")];
    let pieces = vec![Piece::Data(b"\0\0\0"), Piece::Data(b"\0\x03abc"), Piece::Trailers(trailers)];
    let inner =
        method(&runs, &[("x-receipt-bin", "AAEC"), ("x-twice", "a"), ("x-twice", "b")], pieces);
    let service = filter().grpc(STD).layer(inner);
    let first = answer!(service, call(PATH, "k"));
    let again = answer!(service, call(PATH, "k"));
    for (answer, is_replay) in [(&first, false), (&again, true)] {
        assert_eq!((answer.status, answer.is_replay()), (StatusCode::OK, is_replay));
        assert_eq!(answer.body, MESSAGE);
        assert_eq!(answer.header("content-type"), Some("application/grpc"));
        assert_eq!(
            (answer.header("x-receipt-bin"), answer.header("x-run")),
            (Some("AAEC"), Some("1"))
        );
        assert_eq!(answer.headers.get_all("x-twice").iter().collect::<Vec<_>>(), ["a", "b"]);
        let trailers = answer.trailers.as_ref().expect("trailers");
        assert_eq!(trailers["grpc-status"], "0");
        assert_eq!(trailers.get_all("x-cost").iter().collect::<Vec<_>>(), ["3", "4"]);
        assert!(!trailers.contains_key("idempotent-replayed"), "a handler cannot forge the mark");
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_7_a_status_returned_normally_is_stored_and_replayed() {
    let runs = Runs::default();
    let refused =
        &[("grpc-status", "9"), ("grpc-message", "no%20funds"), ("grpc-status-details-bin", "CAk")];
    let service = filter().grpc(STD).layer(method(&runs, refused, Vec::new()));
    for is_replay in [false, true, true] {
        let answer = answer!(service, call(PATH, "k"));
        assert_eq!((answer.header("grpc-status"), answer.is_replay()), (Some("9"), is_replay));
        assert_eq!(answer.header("grpc-message"), Some("no%20funds"));
        assert_eq!(answer.header("grpc-status-details-bin"), Some("CAk"));
        assert!(answer.body.is_empty());
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_7_a_status_says_its_fate_by_metadata_that_does_not_leave_the_server() {
    for (word, second_run, ends_in) in
        [("store", "1", "14"), ("release", "2", "14"), ("hold", "", "10"), ("relase", "", "10")]
    {
        let runs = Runs::default();
        let headers: &'static [_] =
            vec![("grpc-status", "14"), (FATE, word), ("x-last", "z")].leak();
        let policy = STD.with_wait_timeout(Duration::ZERO);
        let service = filter().grpc(policy).layer(method(&runs, headers, Vec::new()));
        let first = answer!(service, call(PATH, "k"));
        assert_eq!((first.header("grpc-status"), first.header(FATE)), (Some("14"), None), "{word}");
        assert_eq!(first.header("x-last"), Some("z"));
        let second = answer!(service, call(PATH, "k"));
        assert_eq!(second.header("grpc-status"), Some(ends_in), "{word}");
        assert_eq!(second.header("x-run").unwrap_or_default(), second_run, "{word}");
        assert_eq!(second.header(FATE), None);
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_a_fate_of_an_inner_call_frees_no_outer_key() {
    let status = [("grpc-status", "14"), ("retryproof-fate", "release")];
    let mail = method(&Runs::default(), status.to_vec().leak(), vec![]);
    let mail = filter().grpc(Policy::unnamed()).layer(mail);
    let runs = Runs::default();
    let order = {
        let runs = runs.clone();
        service_fn(move |_: Request<GuardedBody<Body>>| {
            runs.run();
            mail.clone().oneshot(call("/mail.v1.Mail/Send", "m"))
        })
    };
    let order = filter().grpc(Policy::unnamed()).layer(order);
    for _ in 0..3 {
        assert_eq!(
            answer!(order, call("/pay.v1.Pay/Order", "k")).header("grpc-status"),
            Some("14")
        );
    }
    assert_eq!(runs.count(), 1);
}

/// A stream whose first item is an error sends its status, and with it the fate, in the trailers.
#[tokio::test(start_paused = true)]
async fn http_7_a_status_in_trailers_says_its_fate_by_its_metadata_too() {
    for (word, second_run, ends_in) in
        [("store", "1", "14"), ("release", "2", "14"), ("hold", "", "10"), ("relase", "", "10")]
    {
        let runs = Runs::default();
        let trailers: &'static [_] =
            vec![("grpc-status", "14"), (FATE, word), ("x-last", "z")].leak();
        let policy = STD.with_wait_timeout(Duration::ZERO);
        let service =
            filter().grpc(policy).layer(method(&runs, &[], vec![Piece::Trailers(trailers)]));
        let first = answer!(service, call(PATH, "k"));
        let told = first.trailers.expect("trailers");
        assert_eq!(
            (told["grpc-status"].as_bytes(), told["x-last"].as_bytes()),
            (&b"14"[..], &b"z"[..]),
            "{word}"
        );
        assert!(!told.contains_key(FATE), "{word}");
        let second = answer!(service, call(PATH, "k"));
        let status =
            |trailers: &HeaderMap| trailers["grpc-status"].to_str().map(str::to_owned).unwrap();
        let ended = second.trailers.as_ref().map(status);
        let ended = ended.or_else(|| second.header("grpc-status").map(str::to_owned));
        assert_eq!(ended.as_deref(), Some(ends_in), "{word}");
        assert_eq!(second.header("x-run").unwrap_or_default(), second_run, "{word}");
        assert!(second.trailers.is_none_or(|trailers| !trailers.contains_key(FATE)), "{word}");
    }
}

/// A response that is recorded before its status is known counts as done, whatever the status says.
/// The metadata entry with the fate does not leave the server.
#[tokio::test(start_paused = true)]
async fn http_7_http_13_the_fate_at_the_end_of_a_stream_comes_too_late_and_does_not_leave_the_server()
 {
    let ending = Piece::Trailers(&[("grpc-status", "14"), (FATE, "release"), ("x-last", "z")]);
    let unnamed =
        (filter().grpc(STD), vec![Piece::Data(MESSAGE), Piece::Data(MESSAGE), ending.clone()]);
    let named = (filter().grpc(STD).streaming(PATH), vec![Piece::Data(MESSAGE), ending]);
    for (layer, pieces) in [unnamed, named] {
        let runs = Runs::default();
        let service = layer.layer(method(&runs, &[], pieces));
        let first = answer!(service, call(PATH, "k")).trailers.expect("trailers");
        assert_eq!((first.get(FATE), first["x-last"].as_bytes()), (None, &b"z"[..]));
        assert_eq!(answer!(service, call(PATH, "k")).header("grpc-status"), Some("6"));
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_an_answer_that_breaks_off_is_an_internal_error_and_does_not_run_again() {
    let runs = Runs::default();
    for pieces in [
        vec![Piece::Data(MESSAGE), Piece::Error],
        vec![Piece::Data(&MESSAGE[..6]), Piece::Error],
        vec![Piece::Error],
        vec![Piece::Data(MESSAGE), Piece::Panic],
    ] {
        let before = runs.count();
        let service = filter().grpc(STD).layer(method(&runs, &[], pieces));
        let first = answer!(service, call(PATH, "k"));
        assert_eq!((first.header("grpc-status"), first.status), (Some("13"), StatusCode::OK));
        assert_eq!(answer!(service, call(PATH, "k")).header("grpc-status"), Some("6"));
        assert_eq!(runs.count(), before + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_a_second_message_makes_a_stream_which_flows_and_is_not_replayable() {
    let runs = Runs::default();
    let go_on = Arc::new(Notify::new());
    let pieces = vec![
        Piece::Data(MESSAGE),
        Piece::Data(MESSAGE),
        Piece::Wait(Arc::clone(&go_on)),
        Piece::Data(MESSAGE),
        OK,
    ];
    let service = filter().grpc(STD).layer(method(&runs, &[], pieces));
    let Ok(first) = service.clone().oneshot(call(PATH, "k")).await;
    let mut body = first.into_body();
    // The two messages that show that the response is a stream arrive in one piece. The rest
    // arrives as it is sent.
    let frame = body.frame().await.expect("a frame").expect("whole");
    assert_eq!(frame.into_data().expect("two messages"), [MESSAGE, MESSAGE].concat());
    // The response is already recorded while the stream is open.
    let duplicate = answer!(service, call(PATH, "k"));
    assert_eq!(duplicate.header("grpc-status"), Some("6"));
    go_on.notify_one();
    let rest = body.collect().await.expect("the rest");
    assert_eq!(rest.trailers().expect("trailers")["grpc-status"], "0");
    assert_eq!(rest.to_bytes(), MESSAGE);
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_7_http_13_a_stream_that_falls_silent_after_its_first_message_reaches_its_client() {
    let never = Arc::new(Notify::new());
    for (pieces, sent) in [
        (vec![Piece::Data(MESSAGE), Piece::Wait(Arc::clone(&never))], MESSAGE),
        (vec![Piece::Wait(never)], &b""[..]),
    ] {
        let runs = Runs::default();
        let service = filter().grpc(Policy::unnamed()).layer(method(&runs, &[], pieces));
        let Ok(response) = service.clone().oneshot(call("/pay.v1.Pay/Watch", "k")).await;
        let mut body = response.into_body();
        if !sent.is_empty() {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), sent);
        }
        let again = answer!(service, call("/pay.v1.Pay/Watch", "k"));
        assert_eq!(again.header("grpc-status"), Some("6"), "it is recorded as done");
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_a_message_marked_as_a_stream_is_not_replayable() {
    let runs = Runs::default();
    let headers = &[("retryproof-fate", "stream")];
    let service = filter().grpc(Policy::unnamed()).layer(method(
        &runs,
        headers,
        vec![Piece::Data(MESSAGE), OK],
    ));
    let first = answer!(service, call("/pay.v1.Pay/Export", "k"));
    assert_eq!((&first.body[..], first.header("retryproof-fate")), (MESSAGE, None));
    let again = answer!(service, call("/pay.v1.Pay/Export", "k"));
    assert_eq!(again.header("grpc-status"), Some("6"));
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_13_a_named_stream_flows_from_its_first_byte_on() {
    let runs = Runs::default();
    let go_on = Arc::new(Notify::new());
    let pieces = vec![Piece::Wait(Arc::clone(&go_on)), Piece::Data(MESSAGE), OK];
    let service = filter().grpc(STD).streaming(PATH).layer(method(&runs, &[], pieces));
    let Ok(first) = service.clone().oneshot(call(PATH, "k")).await;
    let duplicate = answer!(service, call(PATH, "k"));
    assert_eq!(duplicate.header("grpc-status"), Some("6"), "the head of the answer was enough");
    go_on.notify_one();
    let first = Answer::of(first).await;
    assert_eq!(
        (&first.body[..], first.trailers.expect("trailers")["grpc-status"].as_bytes()),
        (MESSAGE, &b"0"[..])
    );
    // Another method of the same service is not named as streaming, so it is handled like any other
    // call.
    go_on.notify_one();
    assert_eq!(
        answer!(service, call("/pay.v1.Payments/Refund", "other")).header("x-run"),
        Some("2")
    );
}

#[tokio::test(start_paused = true)]
async fn http_13_an_answer_over_the_limit_arrives_whole_and_is_not_replayable() {
    let runs = Runs::default();
    let pieces = vec![
        Piece::Data(b"\0\0\0\0\x14"),
        Piece::Data(b"0123456789"),
        Piece::Data(b"0123456789"),
        OK,
    ];
    let filter = filter_with(|config| config.web.max_response_bytes = 12);
    let service = filter.grpc(STD).layer(method(&runs, &[], pieces));
    let first = answer!(service, call(PATH, "k"));
    assert_eq!((first.body.len(), first.trailers.expect("trailers").len()), (25, 1));
    assert_eq!(answer!(service, call(PATH, "k")).header("grpc-status"), Some("6"));
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_16_without_a_named_scope_each_method_has_its_own() {
    let runs = Runs::default();
    let service =
        filter().grpc(Policy::unnamed()).layer(method(&runs, &[], vec![Piece::Data(MESSAGE), OK]));
    for (path, run) in [(PATH, "1"), ("/pay.v1.Payments/Refund", "2"), (PATH, "1")] {
        let answer = answer!(service, call(path, "k"));
        assert_eq!(answer.header("x-run"), Some(run), "{path}");
    }
    // If both methods share one scope, the same key with the other method is a mismatch.
    let service = filter().grpc(STD).layer(method(&runs, &[], vec![Piece::Data(MESSAGE), OK]));
    assert_eq!(answer!(service, call(PATH, "k")).header("x-run"), Some("3"));
    assert_eq!(
        answer!(service, call("/pay.v1.Payments/Refund", "k")).header("grpc-status"),
        Some("3")
    );
}

#[tokio::test(start_paused = true)]
async fn http_3_where_keys_are_optional_a_call_without_one_is_handed_on_untouched() {
    let runs = Runs::default();
    let filter = filter_with(|config| config.web.required = false);
    let go_on = Arc::new(Notify::new());
    let headers = &[(FATE, "release")];
    let pieces = vec![Piece::Data(MESSAGE), Piece::Wait(Arc::clone(&go_on)), OK];
    for layer in [filter.grpc(STD), filter.grpc(STD).streaming(PATH)] {
        let service = layer.layer(method(&runs, headers, pieces.clone()));
        let mut keyless = call(PATH, "k");
        keyless.headers_mut().remove("idempotency-key");
        let Ok(first) = service.oneshot(keyless).await;
        assert!(!first.headers().contains_key(FATE), "it never leaves the server");
        go_on.notify_one();
        assert_eq!(Answer::of(first).await.body, MESSAGE);
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn http_11_the_form_of_refusals_is_the_hooks() {
    let runs = Runs::default();
    let codes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&codes);
    let filter = filter().with_rejections(move |problem| {
        seen.lock().push(problem.code.as_str());
        refusal(problem)
    });
    let service = filter.guard(STD).layer(method(&runs, &[], vec![Piece::Data(MESSAGE), OK]));
    let mut keyless = call(PATH, "k");
    keyless.headers_mut().remove("idempotency-key");
    let refused = answer!(service, keyless.map(GuardedBody::inner));
    assert_eq!((refused.status, refused.header("grpc-status")), (StatusCode::OK, Some("3")));
    assert!(
        refused.header("grpc-message").is_some_and(|text| text.contains("Idempotency-Key")),
        "{refused:?}"
    );
    assert_eq!(*codes.lock(), ["key-missing"]);
    assert_eq!(runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn http_7_a_mark_in_the_extensions_counts_as_in_any_answer() {
    let runs = Runs::default();
    let inner = method(&runs, &[], vec![Piece::Data(MESSAGE), OK]);
    let marked = inner.map_response(|response| AnswerFate::Release.mark(response));
    let service = filter().grpc(STD).layer(marked);
    for run in ["1", "2"] {
        assert_eq!(answer!(service, call(PATH, "k")).header("x-run"), Some(run));
    }
}

/// A grpc-web body: a frame with a message, and a second frame with the trailers.
const WEB: &[u8] = b"\0\0\0\0\x03abc\x80\0\0\0\x0fgrpc-status:0\r\n";

#[tokio::test(start_paused = true)]
async fn http_8_an_answer_of_grpc_web_is_replayed_though_its_trailers_are_a_second_frame() {
    for form in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text"]
    {
        let runs = Runs::default();
        let headers: &'static [_] = vec![("content-type", form)].leak();
        let service = filter().grpc(STD).layer(method(&runs, headers, vec![Piece::Data(WEB)]));
        for is_replay in [false, true] {
            let answer = answer!(service, call(PATH, "k"));
            assert_eq!((&answer.body[..], answer.is_replay()), (WEB, is_replay), "{form}");
        }
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_a_second_message_is_seen_in_every_encoding_of_grpc() {
    for form in
        ["application/grpc+proto", "application/grpc;charset=utf-8", "Application/gRPC ; a=b"]
    {
        let runs = Runs::default();
        let headers: &'static [_] = vec![("content-type", form)].leak();
        let pieces = vec![Piece::Data(MESSAGE), Piece::Data(MESSAGE), OK];
        let service = filter().grpc(STD).layer(method(&runs, headers, pieces));
        assert_eq!(answer!(service, call(PATH, "k")).body.len(), 2 * MESSAGE.len(), "{form}");
        assert_eq!(answer!(service, call(PATH, "k")).header("grpc-status"), Some("6"), "{form}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_a_named_stream_flows_over_grpc_web_too() {
    let runs = Runs::default();
    let go_on = Arc::new(Notify::new());
    let pieces = vec![Piece::Wait(Arc::clone(&go_on)), Piece::Data(WEB)];
    let inner = method(&runs, &[("content-type", "application/grpc-web+proto")], pieces);
    let service = filter().grpc(STD).streaming(PATH).layer(inner);
    let Ok(first) = service.clone().oneshot(call(PATH, "k")).await;
    assert_eq!(answer!(service, call(PATH, "k")).header("grpc-status"), Some("6"));
    go_on.notify_one();
    assert_eq!(Answer::of(first).await.body, WEB);
}

#[tokio::test(start_paused = true)]
async fn http_19_every_status_is_stored_whatever_the_policy_chooses() {
    let policy = STD.with_stored(StoredStatuses::SUCCESSES);
    let in_trailers = vec![Piece::Trailers(&[("grpc-status", "13")])];
    let in_head = &[("grpc-status", "13")];
    for (key, headers, pieces) in
        [("head", &in_head[..], Vec::new()), ("trailers", &[], in_trailers)]
    {
        let runs = Runs::default();
        let service = filter().grpc(policy).layer(method(&runs, headers, pieces));
        for is_replay in [false, true] {
            assert_eq!(answer!(service, call(PATH, key)).is_replay(), is_replay, "{key}");
        }
        assert_eq!(runs.count(), 1, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_20_a_mismatch_is_an_invalid_argument_whatever_the_policy_chooses() {
    let runs = Runs::default();
    let inner = method(&runs, &[], vec![Piece::Data(MESSAGE), OK]);
    let service = filter().grpc(STD.with_mismatch_status(409)).layer(inner);
    assert_eq!(answer!(service, call(PATH, "k")).status, StatusCode::OK);
    let other = answer!(service, call(PATH, "k").map(|_| Body::from(&b"\0\0\0\0\x01b"[..])));
    assert_eq!((other.status, other.header("grpc-status")), (StatusCode::OK, Some("3")));
    assert_eq!(runs.count(), 1);
}
