// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to a lab, over a fresh HTTP/1.1 connection or many on one h2c connection.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{HeaderMap, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// The time limit for an exchange of these tests.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// The parts that two answers to one key have in common: status, stored header lines in order,
/// body, trailers.
type Repeated = (StatusCode, Vec<(String, Vec<u8>)>, Bytes, Option<HeaderMap>);

impl Answer {
    pub(crate) fn is_replay(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// Returns the problem's code.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the parts that a replay repeats: status, body, trailers, and the stored header lines
    /// in order.
    pub(crate) fn repeated(&self) -> Repeated {
        let own = [
            "idempotent-replayed",
            "cache-control",
            "date",
            "content-length",
            "transfer-encoding",
            "trailer",
        ];
        let lines = self.headers.iter().filter(|(name, _)| !own.contains(&name.as_str()));
        let lines = lines.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
        let mut lines: Vec<_> = lines.collect();
        if crate::server::on_actix() {
            // actix-web keeps no order among fields with different names, but it keeps the order of
            // lines with the same name. This sort is stable, so it keeps that order too.
            lines.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
        (self.status, lines, self.body.clone(), self.trailers.clone())
    }
}

/// A request that can be sent once or repeatedly.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, Vec<u8>)>,
    body: Bytes,
}

impl Ask {
    pub(crate) fn post(path: impl Into<String>) -> Self {
        Self {
            method: "POST",
            path: path.into(),
            headers: Vec::new(),
            body: Bytes::from_static(b"{}"),
        }
    }

    pub(crate) fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    pub(crate) fn key(self, key: impl AsRef<[u8]>) -> Self {
        self.header("idempotency-key", key)
    }

    pub(crate) fn script(self, script: &Value) -> Self {
        self.header("x-lab", script.to_string())
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name, value.as_ref().to_vec()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn request(&self, server: SocketAddr) -> Request<Full<Bytes>> {
        let mut request =
            Request::builder().method(self.method).uri(format!("http://{server}{}", self.path));
        for (name, value) in &self.headers {
            request = request.header(*name, value.as_slice());
        }
        request.body(Full::new(self.body.clone())).expect("a well-formed request")
    }

    /// Sends the request over a new HTTP/1.1 connection.
    pub(crate) async fn send(&self, server: SocketAddr) -> Answer {
        let exchange = async {
            let stream = TcpStream::connect(server).await.expect("the lab listens");
            let (mut sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
            let connection = tokio::spawn(connection);
            let mut request = self.request(server);
            let path = self.path.parse().expect("a path");
            *request.uri_mut() = path;
            request.headers_mut().insert("host", server.to_string().parse().expect("a host"));
            let answer = read(sender.send_request(request).await.expect("an answer")).await;
            connection.abort();
            answer
        };
        timeout(PATIENCE, exchange).await.expect("an answer in time")
    }

    /// Sends the request over a shared h2c connection.
    pub(crate) async fn send_h2(&self, server: SocketAddr, connection: &H2) -> Answer {
        let mut sender = connection.clone();
        let exchange = async {
            sender.ready().await.expect("the connection is open");
            read(sender.send_request(self.request(server)).await.expect("an answer")).await
        };
        timeout(PATIENCE, exchange).await.expect("an answer in time")
    }
}

pub(crate) type H2 = http2::SendRequest<Full<Bytes>>;

/// Opens an h2c connection with prior knowledge.
pub(crate) async fn h2(server: SocketAddr) -> H2 {
    let stream = TcpStream::connect(server).await.expect("the lab listens");
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .expect("h2c with prior knowledge");
    tokio::spawn(connection);
    sender
}

async fn read(response: axum::http::Response<hyper::body::Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let collected = body.collect().await.expect("a whole body");
    let trailers = collected.trailers().cloned();
    Answer { status: head.status, headers: head.headers, body: collected.to_bytes(), trailers }
}

/// Returns the counts of a tag: started, finished, dropped.
pub(crate) async fn runs(server: SocketAddr, tag: &str) -> (u64, u64, u64) {
    let counts = Ask::post(format!("/open/runs/{tag}")).method("GET").send(server).await.json();
    let get = |name: &str| counts[name].as_u64().expect("a count");
    (get("started"), get("finished"), get("dropped"))
}

/// Polls a tag's counts until they equal `wanted`.
pub(crate) async fn until_runs(server: SocketAddr, tag: &str, wanted: (u64, u64, u64)) {
    let mut seen = (0, 0, 0);
    for _ in 0..1_000 {
        seen = runs(server, tag).await;
        if seen == wanted {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the runs of {tag} are {seen:?}, not {wanted:?}");
}
