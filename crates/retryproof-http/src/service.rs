// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdempotencyService`]: a service behind the guard.

use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::body::{BoxError, FromReplay, GuardedBody};
use crate::filter::IdempotencyFilter;
use crate::future::ResponseFuture;
use crate::guard::{Admission, Keyed, admit, guarded};
use crate::policy::AtHand;

/// A service whose requests are guarded. A request that the guard does not concern costs neither an
/// allocation nor a buffered byte.
#[derive(Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    filter: IdempotencyFilter,
    policy: AtHand,
}

impl<S> IdempotencyService<S> {
    pub(crate) fn new(inner: S, filter: IdempotencyFilter, policy: AtHand) -> Self {
        Self { inner, filter, policy }
    }
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
        match admit(&self.filter, &self.policy, &request) {
            Admission::Pass => ResponseFuture::pass(self.inner.call(request)),
            Admission::Inside => ResponseFuture::inside(self.inner.call(request)),
            Admission::Refused(answer) => ResponseFuture::answered(answer.map(GuardedBody::replay)),
            Admission::Keyed(key) => {
                let keyed = Keyed { filter: self.filter.clone(), policy: self.policy.clone(), key };
                // The one that was polled ready goes along; its clone takes the place (tower's
                // contract).
                let next = self.inner.clone();
                let mut ready = std::mem::replace(&mut self.inner, next);
                let (parts, body) = request.into_parts();
                let run = move |request| ready.call(request);
                let parts = Box::new(parts);
                ResponseFuture::guarded(Box::pin(guarded(keyed, parts, body, None, run)))
            }
        }
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
