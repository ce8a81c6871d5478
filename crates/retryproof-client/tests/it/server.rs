// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server without a socket: the innermost middleware, which answers from a list and records the
//! requests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use reqwest::{Body, Request, Response, ResponseBuilderExt as _};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use retryproof_client::{Builder, IdempotencyMiddleware, reqwest, reqwest_middleware};
use tokio::time::Instant;

pub(crate) const URL: &str = "http://payments.test/payments?page=1";

/// What the server does with one request.
pub(crate) enum Reply {
    Answer(http::Response<Body>),
    /// Never answers.
    Silence,
    /// Another middleware makes the request fail.
    Refusal,
}

/// A request that the server received, and when.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) method: String,
    pub(crate) url: String,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Option<Bytes>,
}

impl Sent {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.header("idempotency-key")
    }
}

#[derive(Clone, Default)]
pub(crate) struct Server {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Server {
    /// Creates a server with these replies, one for each request, and 503 after them.
    pub(crate) fn with(replies: impl IntoIterator<Item = Reply>) -> Self {
        let server = Self::default();
        server.replies.lock().extend(replies);
        server
    }

    /// Creates a client of this server through the middleware, whose pauses have no jitter.
    pub(crate) fn client(&self, settings: impl FnOnce(Builder) -> Builder) -> ClientWithMiddleware {
        let builder = settings(IdempotencyMiddleware::builder().jitter_source(|| 0));
        let middleware = builder.build().expect("settings that make sense");
        ClientBuilder::new(reqwest::Client::new()).with(middleware).with(self.clone()).build()
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().clone()
    }

    /// Returns the seconds from the first request to each request.
    pub(crate) fn seconds(&self) -> Vec<f64> {
        let sent = self.sent.lock();
        sent.iter().map(|one| (one.at - sent[0].at).as_secs_f64()).collect()
    }
}

#[async_trait::async_trait]
impl Middleware for Server {
    async fn handle(
        &self,
        request: Request,
        _: &mut http::Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        self.sent.lock().push(Sent {
            at: Instant::now(),
            method: request.method().to_string(),
            url: request.url().to_string(),
            headers: request.headers().clone(),
            body: request.body().and_then(Body::as_bytes).map(Bytes::copy_from_slice),
        });
        let reply = self.replies.lock().pop_front();
        match reply.unwrap_or_else(|| answer(503)) {
            Reply::Answer(response) => Ok(response.into()),
            Reply::Silence => std::future::pending().await,
            Reply::Refusal => {
                Err(reqwest_middleware::Error::middleware(std::io::Error::other("no token")))
            }
        }
    }
}

pub(crate) fn answer(status: u16) -> Reply {
    with(status, &[], "")
}

pub(crate) fn with(status: u16, headers: &[(&str, &str)], body: impl Into<Body>) -> Reply {
    let mut answer = http::Response::builder().status(status).url(URL.parse().expect("a URL"));
    for (name, value) in headers {
        answer = answer.header(*name, *value);
    }
    Reply::Answer(answer.body(body.into()).expect("an answer"))
}

/// Returns a problem that the filter sends.
pub(crate) fn problem(
    status: u16,
    code: &str,
    retryable: bool,
    retry_after: Option<&str>,
) -> Reply {
    let mut headers = vec![("content-type", "application/problem+json")];
    headers.extend(retry_after.map(|after| ("retry-after", after)));
    with(
        status,
        &headers,
        format!(r#"{{"status":{status},"code":"{code}","retryable":{retryable}}}"#),
    )
}

/// A body that arrives in pieces, and may break off.
pub(crate) struct Pieces(pub(crate) VecDeque<Result<Frame<Bytes>, std::io::Error>>);

impl Pieces {
    pub(crate) fn body(
        pieces: impl IntoIterator<Item = Result<Frame<Bytes>, std::io::Error>>,
    ) -> Body {
        Body::wrap(Self(pieces.into_iter().collect()))
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Poll::Ready(self.0.pop_front())
    }
}

/// A body of which only the first piece arrives.
pub(crate) struct Unending(pub(crate) Option<Bytes>);

impl http_body::Body for Unending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}
