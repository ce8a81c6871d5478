// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's side: one request over a fresh connection, whole or cut off in the middle.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{Method, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::BoxError;
use crate::ledger::Order;

/// How long a client waits for an answer before it counts it as lost.
const PATIENCE: Duration = Duration::from_secs(15);

/// An answer, as far as two answers to one key must be equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// Header lines in order, without those that every answer gets anew.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Bytes,
}

/// An answer with what only this delivery of it has.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) answer: Answer,
    pub(crate) replayed: bool,
    pub(crate) retry_after: Option<Duration>,
}

/// Posts a payment. With `cut_after`, drops the connection then, whatever came.
pub(crate) async fn pay(
    server: SocketAddr,
    key: &str,
    order: &Order,
    cut_after: Option<Duration>,
) -> Result<Delivery, BoxError> {
    let body = Full::new(Bytes::from(serde_json::to_vec(order)?));
    let request = Request::builder()
        .method(Method::POST)
        .uri("/payments")
        .header(header::HOST, server.to_string())
        .header(header::CONTENT_TYPE, "application/json")
        .header("idempotency-key", key)
        .body(body)?;
    let exchange = async {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Polled beside the request: dropping this future drops the socket too.
        let answered = async {
            let response = sender.send_request(request).await?;
            let (head, body) = response.into_parts();
            Ok::<_, BoxError>((head, body.collect().await?.to_bytes()))
        };
        let mut answered = std::pin::pin!(answered);
        tokio::select! {
            biased;
            answer = &mut answered => answer,
            ended = connection => {
                ended?;
                answered.await
            }
        }
    };
    let (head, body) = timeout(cut_after.unwrap_or(PATIENCE), exchange).await??;
    let retry_after =
        head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    // What the filter adds to a replay, what a server makes anew for each answer, and framing.
    let own = [
        "idempotent-replayed",
        "cache-control",
        "date",
        "content-length",
        "transfer-encoding",
        "connection",
    ];
    let lines = head.headers.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    Ok(Delivery {
        replayed: head.headers.contains_key("idempotent-replayed"),
        retry_after: retry_after.map(Duration::from_secs),
        answer: Answer {
            status: head.status,
            headers: lines
                .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                .collect(),
            body,
        },
    })
}
