// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GrpcLayer`]: the guard for gRPC. A service outside the guard makes the request body
//! replayable, and a service inside the guard reads the first message of the response.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::fate::take_fate;
use super::first_message::GrpcBody;
use super::refusal;
use crate::body::{BoxError, GuardedBody, ReplayBody};
use crate::call::CallMark;
use crate::fate::{AnswerFate, RollBackWrites};
use crate::filter::IdempotencyFilter;
use crate::head::GrpcMethod;
use crate::policy::Policy;
use crate::tower::{IdempotencyLayer, IdempotencyService, ResponseFuture};

impl IdempotencyFilter {
    /// Creates the layer that guards a gRPC service under `policy`, with this filter's engine,
    /// settings and hooks. The guard's own responses are gRPC statuses. See the [module
    /// `grpc`](crate::grpc). If the policy names no scope, each method is its own scope:
    /// `pay.v1.Payments/Charge`.
    #[must_use]
    pub fn grpc(&self, policy: Policy) -> GrpcLayer {
        GrpcLayer { guard: self.with_rejections(refusal).guard(policy), streaming: Arc::default() }
    }
}

/// Guards gRPC services; created by [`IdempotencyFilter::grpc`].
#[derive(Clone)]
pub struct GrpcLayer {
    guard: IdempotencyLayer,
    streaming: Arc<Vec<&'static str>>,
}

impl GrpcLayer {
    /// Names a streaming method, such as `/pay.v1.Payments/Watch`. As soon as the method responds,
    /// the call is recorded as "done, not replayable", and messages flow in both directions
    /// (HTTP-13).
    #[must_use]
    pub fn streaming(mut self, path: &'static str) -> Self {
        Arc::make_mut(&mut self.streaming).push(path);
        self
    }
}

impl<S> Layer<S> for GrpcLayer {
    type Service = GrpcService<S>;

    fn layer(&self, inner: S) -> GrpcService<S> {
        let filter = &self.guard.filter().0;
        let (limit, timeout) = (filter.max_response, filter.web.collect_timeout);
        GrpcService {
            guarded: self.guard.layer(InnerService { inner, limit, timeout }),
            streaming: Arc::clone(&self.streaming),
        }
    }
}

impl fmt::Debug for GrpcLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcLayer")
            .field("guard", &self.guard)
            .field("streaming", &self.streaming)
            .finish()
    }
}

/// A gRPC service behind the guard. The inner service gets its request body as a [`GuardedBody`].
#[derive(Clone)]
pub struct GrpcService<S> {
    guarded: IdempotencyService<InnerService<S>>,
    streaming: Arc<Vec<&'static str>>,
}

impl<S> fmt::Debug for GrpcService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcService").field("streaming", &self.streaming).finish_non_exhaustive()
    }
}

/// The future of a [`GrpcService`]. If the future is dropped after the grant, the call continues
/// (HTTP-12).
pub type GrpcFuture<R, E> = ResponseFuture<InnerFuture<R, E>, GrpcBody<R>, E>;

impl<S, B, R> Service<Request<B>> for GrpcService<S>
where
    S: Service<Request<GuardedBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    type Response = Response<GuardedBody<GrpcBody<R>>>;
    type Error = S::Error;
    type Future = GrpcFuture<R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Service::<Request<GuardedBody<B>>>::poll_ready(&mut self.guarded, cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(GrpcMethod);
        // Let the body of a stream bypass the guard, because the guard would read the whole body
        // before the service runs.
        let body = if self.streaming.contains(&parts.uri.path()) {
            parts.extensions.insert(StreamBody(Arc::new(Mutex::new(Some(body)))));
            GuardedBody::replay(ReplayBody::default())
        } else {
            GuardedBody::inner(body)
        };
        self.guarded.call(Request::from_parts(parts, body))
    }
}

/// Carries a stream's request body past the guard to the inner service.
struct StreamBody<B>(Arc<Mutex<Option<B>>>);

impl<B> Clone for StreamBody<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Wraps the inner service for the guard, and reads the first message of the response.
#[derive(Clone)]
struct InnerService<S> {
    inner: S,
    /// Responses over this many bytes cannot be replayed.
    limit: usize,
    /// Responses that take longer than this to read cannot be replayed.
    timeout: Duration,
}

/// A future that runs the inner service and then reads the first message of its response.
pub(crate) type InnerFuture<R, E> =
    Pin<Box<dyn Future<Output = Result<Response<GrpcBody<R>>, E>> + Send>>;

impl<S, B, R> Service<Request<GuardedBody<B>>> for InnerService<S>
where
    S: Service<Request<GuardedBody<B>>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    type Response = Response<GrpcBody<R>>;
    type Error = S::Error;
    type Future = InnerFuture<R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<GuardedBody<B>>) -> Self::Future {
        let is_guarded = request.extensions().get::<CallMark>().is_some();
        let stream = request.extensions_mut().remove::<StreamBody<B>>();
        let is_stream = stream.is_some();
        if let Some(body) =
            stream.and_then(|stream| stream.0.lock().unwrap_or_else(PoisonError::into_inner).take())
        {
            *request.body_mut() = GuardedBody::inner(body);
        }
        let running = self.inner.call(request);
        let (limit, timeout) = (self.limit, self.timeout);
        Box::pin(async move {
            let (mut parts, body) = running.await?.into_parts();
            if let Some(fate) = take_fate(&mut parts.headers) {
                parts.extensions.insert(fate);
            }
            let fate = parts.extensions.get::<AnswerFate>().copied().unwrap_or_default();
            if !is_guarded || !matches!(fate, AnswerFate::Store | AnswerFate::Stream) {
                return Ok(Response::from_parts(parts, GrpcBody::passed(body)));
            }
            let is_refused = is_error(&parts.headers);
            let mut body = match GrpcEncoding::of(&parts.headers) {
                _ if fate == AnswerFate::Stream => GrpcBody::passed(body),
                // An error status in the head means that no message follows, even from a streaming
                // method (HTTP-7).
                Some(_) if is_stream && !is_refused => GrpcBody::stream(body),
                Some(GrpcEncoding::Plain) => GrpcBody::read_first(body, limit, timeout).await,
                Some(GrpcEncoding::Web) | None => GrpcBody::passed(body),
            };
            // If the body was read to its end, its trailers can contain a fate, for example if the
            // first item of a stream is an error.
            if let Some(fate) = body.take_fate() {
                parts.extensions.insert(fate);
                if fate != AnswerFate::Store {
                    return Ok(Response::from_parts(parts, body));
                }
            }
            if is_refused || body.trailers().is_some_and(is_error) {
                parts.extensions.insert(RollBackWrites);
            }
            Ok(Response::from_parts(parts, body))
        })
    }
}

/// How a response is encoded.
#[derive(Debug, Clone, Copy)]
enum GrpcEncoding {
    Plain,
    /// grpc-web, for browsers. Its trailers are a second frame of the body, which must not count as
    /// a second message.
    Web,
}

impl GrpcEncoding {
    fn of(headers: &HeaderMap) -> Option<Self> {
        const GRPC: &[u8] = b"application/grpc";
        let value = headers.get(CONTENT_TYPE)?.as_bytes();
        let (name, rest) = value.split_at_checked(GRPC.len())?;
        if !name.eq_ignore_ascii_case(GRPC) {
            return None;
        }
        match rest {
            [] | [b'+' | b';' | b' ' | b'\t', ..] => Some(Self::Plain),
            [b'-', ..] => Some(Self::Web),
            _ => None,
        }
    }
}

/// Whether these fields contain a gRPC status other than `OK`.
fn is_error(fields: &HeaderMap) -> bool {
    fields.get("grpc-status").is_some_and(|status| status != "0")
}
