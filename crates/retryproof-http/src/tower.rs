// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard as a `tower` layer: [`IdempotencyLayer`], its service and the service's future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::body::{BoxError, FromReplay, GuardedBody};
use crate::fate::AnswerFate;
use crate::filter::IdempotencyFilter;
use crate::guard::{AdmitOutcome, admit, guarded};
use crate::policy::{GuardPolicy, Policy};
use crate::protocol::key::ClientKey;
use crate::served::Served;

impl IdempotencyFilter {
    /// Creates the layer that guards a route under `policy`:
    /// `post(refund).route_layer(filter.guard(Policy::new("refunds")))`. [`Policy::methods`] and
    /// [`Policy::with_unmatched`] decide which requests the layer guards (HTTP-1).
    #[must_use]
    pub fn guard(&self, policy: Policy) -> IdempotencyLayer {
        IdempotencyLayer { filter: self.clone(), policy: GuardPolicy::layer(self, policy) }
    }
}

/// Wraps services and guards their requests under one policy; created by
/// [`IdempotencyFilter::guard`].
///
/// By default, the layer does not guard requests with `GET`, `HEAD`, `OPTIONS` or `TRACE`, or
/// requests that match no route; see [`Policy::methods`] and [`Policy::with_unmatched`] (HTTP-1).
/// The layer's position among other layers decides what is stored; see the [crate's
/// page](crate#layer-order).
/// # When to use
/// In axum, `route_layer` guards matched routes, and `layer` also sees requests that match no
/// route. Both methods guard only the routes that were added before them:
///
/// ```
/// # #[cfg(feature = "axum")] {
/// # use retryproof_core::IdempotencyEngine;
/// # use retryproof_memory::MemoryStore;
/// use axum::{Router, routing::{get, post}};
/// use retryproof_http::{IdempotencyFilter, Policy};
///
/// # let engine = IdempotencyEngine::new(MemoryStore::new());
/// let filter = IdempotencyFilter::builder(engine).callers_share_keys().build()?;
/// let app: Router = Router::new()
///     .route("/orders", post(async || "ordered"))
///     .route("/orders/{id}/refunds", post(async || "refunded"))
///     // One scope for each route: `POST /orders`, `POST /orders/{}/refunds`.
///     .route_layer(filter.guard(Policy::unnamed()))
///     .route("/health", get(async || "healthy"));
/// # }
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer {
    filter: IdempotencyFilter,
    policy: GuardPolicy,
}

#[cfg(feature = "grpc")]
impl IdempotencyLayer {
    pub(crate) fn filter(&self) -> &IdempotencyFilter {
        &self.filter
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService { inner, filter: self.filter.clone(), policy: self.policy }
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("policy", &*self.policy).finish_non_exhaustive()
    }
}

/// A service whose requests are guarded. The service does not buffer unguarded requests; it only
/// adds the extension [`Served`] to their responses.
#[derive(Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    filter: IdempotencyFilter,
    policy: GuardPolicy,
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: FromReplay + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<GuardedBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let length = || request.body().size_hint().lower();
        let key = || ClientKey::from_headers(request.headers(), &self.filter.0.key_header);
        let state = match admit(&self.filter, &self.policy, &request, length, key) {
            AdmitOutcome::PassThrough => ResponseState::Passed { future: self.inner.call(request) },
            AdmitOutcome::Inside => ResponseState::Inside { future: self.inner.call(request) },
            AdmitOutcome::Refused(response) => {
                ResponseState::Refused { response: Some(response.map(GuardedBody::replay)) }
            }
            AdmitOutcome::Admitted(admitted) => {
                // The service that was polled ready handles this request, and its clone handles the
                // next one, as tower's contract requires.
                let next = self.inner.clone();
                let mut ready = std::mem::replace(&mut self.inner, next);
                let (parts, body) = request.into_parts();
                let handler = move |request| ready.call(request);
                let parts = Box::new(parts);
                ResponseState::Guarded {
                    future: Box::pin(guarded(admitted, parts, body, None, handler)),
                }
            }
        };
        ResponseFuture { state }
    }
}

impl<S: fmt::Debug> fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("inner", &self.inner)
            .field("policy", &*self.policy)
            .finish_non_exhaustive()
    }
}

type BoxedResponse<R, E> =
    Pin<Box<dyn Future<Output = Result<Response<GuardedBody<R>>, E>> + Send>>;

pin_project! {
    /// The future of [`IdempotencyService`].
    ///
    /// If the future is dropped before the lease is granted, the handler never runs. If the future
    /// is dropped later, the handler continues in its own task, and a retry gets the handler's
    /// response (HTTP-12).
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        state: ResponseState<F, R, E>,
    }
}

pin_project! {
    // Only the future of a guarded call is boxed, so other calls need no allocation.
    #[project = ResponseStateProjection]
    enum ResponseState<F, R, E> {
        Passed { #[pin] future: F },
        Inside { #[pin] future: F },
        Refused { response: Option<Response<GuardedBody<R>>> },
        Guarded { future: BoxedResponse<R, E> },
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<GuardedBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            ResponseStateProjection::Passed { future } => {
                Poll::Ready(ready!(future.poll(cx)).map(|mut response| {
                    AnswerFate::take(response.extensions_mut());
                    Served::mark_unguarded(response.extensions_mut());
                    response.map(GuardedBody::inner)
                }))
            }
            ResponseStateProjection::Inside { future } => Poll::Ready(
                ready!(future.poll(cx)).map(|response| response.map(GuardedBody::inner)),
            ),
            // A refused call returns its response once; every later poll returns `Pending`.
            ResponseStateProjection::Refused { response } => {
                response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(response)))
            }
            ResponseStateProjection::Guarded { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
