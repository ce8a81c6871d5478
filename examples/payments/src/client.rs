// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client side: sends one request over a new connection, and can drop the connection before the
//! answer.

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

/// How long a client waits for an answer before the answer counts as lost.
const PATIENCE: Duration = Duration::from_secs(15);

/// The parts of an answer that must be equal in all answers to one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The header lines in order, without lines that can differ between deliveries.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Bytes,
}

/// An answer, with the data of this delivery.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) answer: Answer,
    pub(crate) replayed: bool,
    pub(crate) retry_after: Option<Duration>,
}

/// Posts a payment. With `cut_after`, drops the connection after that time if the answer is not
/// complete.
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
        // The connection is polled together with the request, so dropping this future also drops
        // the socket.
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
    // These header lines can differ between the answers to one key: the filter adds them to
    // replays, the server creates them for each answer, or they describe the framing.
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
