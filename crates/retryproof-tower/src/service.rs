// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`EngineService`]: runs each request once per key.

use std::fmt;
use std::future::{Future, ready};
use std::mem::replace;
use std::pin::Pin;
use std::task::{Context, Poll};

use retryproof_core::{Codec, Error, IdempotencyContext, JsonCodec, Lease, Rejected, settle};
use tower_layer::Layer;
use tower_service::Service;

use crate::identify::{Identify, IntoContext as _};
use crate::layer::EngineLayer;

/// A service behind an [`EngineLayer`].
pub struct EngineService<S, I, C = JsonCodec> {
    inner: S,
    layer: EngineLayer<I, C>,
}

impl<S, I, C: Clone> Layer<S> for EngineLayer<I, C> {
    type Service = EngineService<S, I, C>;

    fn layer(&self, inner: S) -> Self::Service {
        EngineService::new(inner, self.clone())
    }
}

impl<S, I, C> EngineService<S, I, C> {
    fn new(inner: S, layer: EngineLayer<I, C>) -> Self {
        Self { inner, layer }
    }

    /// Extracts the context, adds the layer's durations, and validates the result (CTX-2, ID-3).
    fn context<Req>(&self, request: &Req) -> Result<IdempotencyContext, Error>
    where
        I: Identify<Req>,
    {
        let mut context = self.layer.identify.identify(request).into_context()?;
        let terms = &self.layer.terms;
        if let Some(ttl) = terms.ttl {
            context = context.ttl(ttl);
        }
        if let Some(lease) = terms.lease {
            context = context.lease(lease);
        }
        if let Some(wait) = terms.wait {
            context = context.wait_timeout(wait);
        }
        context.build()
    }
}

impl<S, I, C, Req> Service<Req> for EngineService<S, I, C>
where
    S: Service<Req> + Clone + Send + 'static,
    S::Response: Send + 'static,
    S::Error: From<Rejected> + Send + 'static,
    S::Future: Send + 'static,
    I: Identify<Req> + Send + Sync + 'static,
    C: Codec<S::Response> + Clone + Send + 'static,
    Req: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = EngineFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let ctx = match self.context(&request) {
            Ok(ctx) => ctx,
            // Do not call the inner service, which stays ready for the next request.
            Err(error) => return EngineFuture(Box::pin(ready(Err(Rejected::Store(error).into())))),
        };
        // This call uses the service that was polled ready, as tower's contract requires. A clone
        // of that service handles the next request.
        let next = self.inner.clone();
        let mut inner = replace(&mut self.inner, next);
        let EngineLayer { engine, identify, codec, terms } = self.layer.clone();
        let mut call = engine.call(ctx).codec(codec).on_drop(terms.on_drop);
        if let Some(policy) = terms.completion {
            call = call.completion(policy);
        }
        let action = move |lease: Lease| {
            identify.granted(&mut request, &lease);
            inner.call(request)
        };
        EngineFuture(if terms.own_task {
            Box::pin(async move { settle(call.spawn_with(action).await) })
        } else {
            Box::pin(async move { settle(call.execute_with(action).await) })
        })
    }
}

impl<S: Clone, I, C: Clone> Clone for EngineService<S, I, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, I, C: fmt::Debug> fmt::Debug for EngineService<S, I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineService")
            .field("inner", &self.inner)
            .field("layer", &self.layer)
            .finish()
    }
}

/// The future of an [`EngineService`].
///
/// # Cancel safety
/// If the future is dropped before the inner service's future is first polled, the key is free. If
/// it is dropped while the inner service runs, the lease runs out, and the next run is a takeover;
/// [`on_drop`](EngineLayer::on_drop) and [`on_own_task`](EngineLayer::on_own_task) change this
/// outcome. If it is dropped while the response is being recorded, the recording finishes in the
/// background (RUN-5).
#[must_use = "a future does nothing until it is polled"]
pub struct EngineFuture<T, E>(Pin<Box<dyn Future<Output = Result<T, E>> + Send>>);

impl<T, E> Future for EngineFuture<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<T, E> fmt::Debug for EngineFuture<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineFuture")
    }
}
