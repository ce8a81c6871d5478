// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests over real sockets, with HTTP/1.1 and HTTP/2 without TLS: clients that disconnect, uploads,
//! framing (HTTP-5, HTTP-12, HTTP-17).
//!
//! This file is over 400 lines long because all cases share one raw client, which speaks both
//! protocols.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post as on_post};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use retryproof_http::{IdempotencyFilter, Policy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use crate::world::{Annotated, Answer, Runs, STD, filter, filter_with};

/// The longest time for a test, so that a hanging test ends.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy)]
enum Protocol {
    Http1,
    H2c,
}

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::H2c];

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

/// One client connection.
struct Client {
    kind: Kind,
    connection: JoinHandle<()>,
    authority: String,
}

enum Kind {
    Http1(http1::SendRequest<Body>),
    H2c(http2::SendRequest<Body>),
}

impl Client {
    async fn to(address: SocketAddr, protocol: Protocol) -> Self {
        let io = TokioIo::new(TcpStream::connect(address).await.expect("the server listens"));
        let authority = address.to_string();
        match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await.expect("HTTP/1.1");
                let connection = tokio::spawn(async { drop(connection.await) });
                Self { kind: Kind::Http1(sender), connection, authority }
            }
            Protocol::H2c => {
                let (sender, connection) =
                    http2::handshake(TokioExecutor::new(), io).await.expect("h2c");
                let connection = tokio::spawn(async { drop(connection.await) });
                Self { kind: Kind::H2c(sender), connection, authority }
            }
        }
    }

    async fn try_send(
        &mut self,
        request: http::Request<Body>,
    ) -> hyper::Result<http::Response<hyper::body::Incoming>> {
        match &mut self.kind {
            Kind::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Kind::H2c(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    fn request(&self, key: &str, body: impl Into<Body>) -> http::Request<Body> {
        let builder = http::Request::post(format!("http://{}/pay", self.authority))
            .header("idempotency-key", key);
        let builder = match self.kind {
            Kind::Http1(_) => builder.header("host", &self.authority).version(Version::HTTP_11),
            Kind::H2c(_) => builder.version(Version::HTTP_2),
        };
        builder.body(body.into()).expect("a well-formed request")
    }

    async fn send(&mut self, request: http::Request<Body>) -> Answer {
        let response = in_time("an answer", self.try_send(request)).await.expect("an answer");
        Answer::of(response).await
    }
}

/// A handler that waits for a signal from the test, behind a layer that reports when the connection
/// drops the request.
#[derive(Clone)]
struct Gate {
    runs: Runs,
    finished: Runs,
    started: Arc<Notify>,
    open: Arc<Semaphore>,
    dropped: Arc<Notify>,
    done: Arc<Notify>,
}

impl Gate {
    fn new() -> Self {
        Self {
            runs: Runs::default(),
            finished: Runs::default(),
            started: Arc::default(),
            open: Arc::new(Semaphore::new(0)),
            dropped: Arc::default(),
            done: Arc::default(),
        }
    }

    fn app(&self, filter: &IdempotencyFilter, annotated: bool) -> Router {
        static POLICY: Policy = STD;
        let gate = self.clone();
        let handler = move |body: String| async move {
            let run = gate.runs.run();
            gate.started.notify_one();
            gate.open.acquire().await.expect("open").forget();
            gate.finished.run();
            gate.done.notify_one();
            format!("{run} {body}")
        };
        let dropped = Arc::clone(&self.dropped);
        let watch = move |request: Request, next: Next| {
            let dropped = Arc::clone(&dropped);
            async move {
                struct Watch(Arc<Notify>);
                impl Drop for Watch {
                    fn drop(&mut self) {
                        self.0.notify_one();
                    }
                }
                let watch = Watch(dropped);
                let response = next.run(request).await;
                // The request has ended, so `watch` must not report that it was dropped.
                std::mem::forget(watch);
                response
            }
        };
        let route = if annotated {
            Router::new()
                .route("/pay", on_post(Annotated(&POLICY, handler)))
                .with_state(filter.clone())
        } else {
            Router::new().route("/pay", any(handler)).layer(filter.guard(STD))
        };
        route.layer(from_fn(watch))
    }
}

/// Sends a request and disconnects once the handler runs: the socket is closed, or the stream is
/// reset.
async fn leave_in_the_middle(address: SocketAddr, protocol: Protocol, gate: &Gate) {
    let mut client = Client::to(address, protocol).await;
    let request = client.request("k", "a");
    tokio::select! {
        biased;
        () = gate.started.notified() => {}
        _ = client.try_send(request) => panic!("the handler waits for the gate"),
    }
    if let Protocol::Http1 = protocol {
        client.connection.abort();
    }
    in_time("the server drops the request", gate.dropped.notified()).await;
    drop(client);
}

#[tokio::test]
async fn http_12_http_17_a_client_that_leaves_neither_loses_nor_repeats_the_work() {
    for protocol in BOTH {
        for annotated in [false, true] {
            let gate = Gate::new();
            let address = serve(gate.app(&filter(), annotated)).await;
            leave_in_the_middle(address, protocol, &gate).await;
            assert_eq!((gate.runs.count(), gate.finished.count()), (1, 0));
            // The retry waits for the first request, and gets its response.
            let mut client = Client::to(address, protocol).await;
            let request = client.request("k", "a");
            let retry = tokio::spawn(async move { client.send(request).await });
            gate.open.add_permits(1);
            let answer = in_time("the retry", retry).await.unwrap();
            assert_eq!((answer.text(), answer.is_replay()), ("1 a", true), "{protocol:?}");
            assert_eq!((gate.runs.count(), gate.finished.count()), (1, 1));
        }
    }
}

#[tokio::test]
async fn http_12_shutdown_waits_for_work_whose_client_left() {
    let filter = filter();
    let gate = Gate::new();
    let address = serve(gate.app(&filter, true)).await;
    leave_in_the_middle(address, Protocol::Http1, &gate).await;
    assert_eq!(filter.engine().activity().running, 1);
    assert_eq!(filter.shutdown(Duration::from_millis(20)).await, 1);
    gate.open.add_permits(1);
    assert_eq!(in_time("the rest", filter.shutdown(PATIENCE)).await, 0);
    let mut client = Client::to(address, Protocol::Http1).await;
    let answer = client.send(client.request("k", "a")).await;
    assert!(answer.is_replay(), "stored, and replayed while shutting down");
}

#[tokio::test]
async fn http_12_a_waiter_whose_client_leaves_costs_nothing_more() {
    for protocol in BOTH {
        let filter = filter();
        let gate = Gate::new();
        let address = serve(gate.app(&filter, false)).await;
        let mut first = Client::to(address, protocol).await;
        let request = first.request("k", "a");
        let first = tokio::spawn(async move { first.send(request).await });
        gate.started.notified().await;
        let mut waiter = Client::to(address, protocol).await;
        let request = waiter.request("k", "a");
        let is_waiting = async {
            while filter.engine().activity().waiting == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = is_waiting => {}
            _ = waiter.try_send(request) => panic!("it waits"),
        }
        waiter.connection.abort();
        drop(waiter);
        in_time("the waiter is dropped", gate.dropped.notified()).await;
        assert_eq!(filter.engine().activity().waiting, 0);
        gate.open.add_permits(1);
        assert_eq!(first.await.unwrap().text(), "1 a");
        assert_eq!(gate.runs.count(), 1);
    }
}

#[tokio::test]
async fn http_5_an_upload_that_breaks_off_leaves_no_record() {
    for protocol in BOTH {
        let filter = filter();
        let gate = Gate::new();
        gate.open.add_permits(1);
        let address = serve(gate.app(&filter, false)).await;
        let mut client = Client::to(address, protocol).await;
        // The second piece never arrives.
        let (first_read, pieces) = tokio::sync::mpsc::channel::<Bytes>(1);
        first_read.send(Bytes::from_static(b"half")).await.unwrap();
        let request = client.request("k", Body::new(Pieces(pieces)));
        let sent = tokio::time::timeout(Duration::from_millis(50), client.try_send(request)).await;
        assert!(sent.is_err(), "the server waits for the rest");
        assert_eq!(
            filter.engine().activity().running,
            0,
            "nothing is acquired until the body is whole"
        );
        client.connection.abort();
        drop((client, first_read));
        let mut client = Client::to(address, protocol).await;
        assert_eq!(client.send(client.request("k", "whole")).await.text(), "1 whole");
        assert!(client.send(client.request("k", "whole")).await.is_replay());
        assert_eq!(gate.runs.count(), 1);
    }
}

/// A streamed body of the pieces from a channel.
struct Pieces(tokio::sync::mpsc::Receiver<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(http_body::Frame::data(piece))))
    }
}

/// Creates an app whose handler answers with the length of the body.
fn measuring(filter: &IdempotencyFilter) -> (Router, Runs) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |body: Bytes| async move {
            runs.run();
            body.len().to_string()
        }
    };
    (Router::new().route("/pay", any(handler)).layer(filter.guard(STD)), runs)
}

#[tokio::test]
async fn http_4_a_megabyte_passes_and_a_byte_more_does_not_declared_or_streamed() {
    for protocol in BOTH {
        let (app, runs) = measuring(&filter());
        let address = serve(app).await;
        let chunked = |len: usize| {
            let (send, pieces) = tokio::sync::mpsc::channel(64);
            for start in (0..len).step_by(40_000) {
                let piece = Bytes::from(vec![b'x'; 40_000.min(len - start)]);
                send.try_send(piece).expect("room");
            }
            Body::new(Pieces(pieces))
        };
        for (key, body, passes) in [
            ("declared", Body::from(vec![b'x'; 1 << 20]), true),
            ("declared+1", Body::from(vec![b'x'; (1 << 20) + 1]), false),
            ("chunked", chunked(1 << 20), true),
            ("chunked+1", chunked((1 << 20) + 1), false),
        ] {
            let mut client = Client::to(address, protocol).await;
            let request = client.request(key, body);
            let answer = client.send(request).await;
            if passes {
                assert_eq!(answer.text(), "1048576", "{protocol:?} {key}");
            } else {
                assert_eq!(answer.code(), "body-too-large", "{protocol:?} {key}");
                let close = matches!(protocol, Protocol::Http1).then_some("close");
                assert_eq!(answer.header("connection"), close, "{protocol:?} {key}");
            }
        }
        assert_eq!(runs.count(), 2);
    }
}

/// Writes raw bytes and reads until the server closes.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    in_time("the server closes", socket.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn http_4_an_early_413_saves_the_upload() {
    let (app, _) = measuring(&filter_with(|config| config.web.max_body_bytes = 10));
    let address = serve(app).await;
    // The client sends no byte of the body; the server neither requests the body nor waits for it.
    let head = "POST /pay HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: \
         11\r\nexpect: 100-continue\r\n\r\n";
    let answer = raw(address, head).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    // If the declared length is within the limit, the server requests the body.
    let head = "POST /pay HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: \
         2\r\nexpect: 100-continue\r\nconnection: close\r\n\r\nok";
    let answer = raw(address, head).await;
    assert!(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn http_2_malformed_lines_on_the_wire_are_refused() {
    let (app, runs) = measuring(&filter());
    let address = serve(app).await;
    for lines in [
        "idempotency-key: a\r\nIdempotency-Key: b\r\n",
        "idempotency-key: a\r\nidempotency-key: a\r\n",
        "idempotency-key: a, b\r\n",
        "idempotency-key:\r\n",
        "idempotency-key: \"open\r\n",
        "idempotency-key: caf\u{e9}\r\n",
    ] {
        let request = format!(
            "POST /pay HTTP/1.1\r\nhost: x\r\n{lines}content-length: 0\r\nconnection: close\r\n\r\n"
        );
        let answer = raw(address, &request).await;
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("\"code\":\"key-invalid\""),
            "{lines:?} {answer}"
        );
    }
    // This chunk is malformed, so hyper refuses the request, or the upload ends with an error.
    let chunk = "POST /pay HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ntransfer-encoding: \
         chunked\r\nconnection: close\r\n\r\nzz\r\n";
    let answer = raw(address, chunk).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn http_9_http_17_trailers_reach_the_client_first_and_replayed() {
    async fn handler() -> Response {
        let trailers = async {
            Some(Ok(HeaderMap::from_iter([(
                "x-sum".parse().unwrap(),
                HeaderValue::from_static("7"),
            )])))
        };
        let body = Body::new(Body::from("abc").with_trailers(trailers));
        ([("trailer", "x-sum")], body).into_response()
    }
    for protocol in BOTH {
        let address =
            serve(Router::new().route("/pay", any(handler)).layer(filter().guard(STD))).await;
        let mut client = Client::to(address, protocol).await;
        for replayed in [false, true] {
            let mut request = client.request("k", "");
            request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
            let answer = client.send(request).await;
            assert_eq!((answer.text(), answer.is_replay()), ("abc", replayed));
            assert_eq!(answer.trailers.expect("trailers")["x-sum"], "7", "{protocol:?} {replayed}");
        }
    }
}

#[tokio::test]
async fn http_17_a_first_answer_and_its_replay_are_alike_on_both_protocols() {
    let handler =
        || async { (StatusCode::CREATED, [("location", "/p/1"), ("x-a", "1")], "receipt") };
    for protocol in BOTH {
        let address =
            serve(Router::new().route("/pay", any(handler)).layer(filter().guard(STD))).await;
        let mut client = Client::to(address, protocol).await;
        let first = client.send(client.request("k", "")).await;
        let again = client.send(client.request("k", "")).await;
        assert_eq!((again.status, again.text()), (StatusCode::CREATED, "receipt"));
        assert_eq!(again.header("content-length"), Some("7"));
        let fields = |answer: &Answer| {
            let mut headers = answer.headers.clone();
            for added in ["idempotent-replayed", "cache-control", "date"] {
                headers.remove(added);
            }
            headers
        };
        assert_eq!(fields(&first), fields(&again));
        assert!(again.headers.get_all("date").iter().count() <= 1, "a replay has no second date");
    }
}

#[tokio::test]
async fn http_7_a_panic_without_a_catcher_closes_the_connection_and_frees_the_key() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move {
            assert!(runs.run() > 1, "the first run panics");
            "done"
        }
    };
    let address = serve(Router::new().route("/pay", any(handler)).layer(filter().guard(STD))).await;
    let mut client = Client::to(address, Protocol::Http1).await;
    let request = client.request("k", "");
    assert!(in_time("the end", client.try_send(request)).await.is_err());
    let mut client = Client::to(address, Protocol::Http1).await;
    assert_eq!(client.send(client.request("k", "")).await.text(), "done");
}
