// SPDX-License-Identifier: MIT OR Apache-2.0
//! For adapters of other web frameworks: the path of a guarded request, for requests of any type and
//! for handlers that stay on the thread of their connection. `retryproof-actix` is one.
//!
//! Not for applications. It keeps the promises of the layer, but its names may change in any
//! version.
//!
//! [`admit`] decides by the request's head alone. [`acquire`] returns the response for an admitted
//! request, or the grant, under which [`GrantedRequest::run_local`] runs the handler. Steps,
//! responses and records are those of the tower layer. Neither a request nor a replay is converted
//! to a type of the `http` crate; the response of a handler is.

use std::future::Future;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response};
use http_body::Body;

use crate::body::{GuardedBody, ReplayBody};
use crate::call::ClientKey;
use crate::filter::IdempotencyFilter;
use crate::guard;
use crate::run::{run_to_end, start_call};
use crate::transaction::TxError;

pub use crate::call::{AdmittedRequest, CallMark, GrantedRequest, LeaseCell, PreGrant};
pub use crate::filter::CallerFuture;
pub use crate::guard::{AdmitOutcome, acquire};
pub use crate::head::{AdmittedHead, RequestHead, Route, RouteTemplate};
pub use crate::policy::GuardPolicy;
pub use crate::protocol::decide::NoTx;
pub use crate::protocol::stored::{COMMON_NAMES, StoredRecord};
pub use crate::response::{FrameworkResponse, HandlerResponse};

/// The name of the header that carries the key.
#[must_use]
pub fn key_header(filter: &IdempotencyFilter) -> &HeaderName {
    &filter.0.key_header
}

/// The filter's limit on a request body, in bytes.
#[must_use]
pub fn max_body_bytes(filter: &IdempotencyFilter) -> usize {
    filter.0.web.max_body_bytes
}

/// Decides by the request's head: already guarded, key, declared length (HTTP-2 to HTTP-4,
/// HTTP-15). `declared_length` is 0 if the request declares none; `key_lines` are those of the [key
/// header](key_header).
pub fn admit<'a>(
    filter: &IdempotencyFilter,
    policy: &GuardPolicy,
    head: &impl RequestHead,
    declared_length: impl FnOnce() -> u64,
    key_lines: impl Iterator<Item = &'a [u8]>,
) -> AdmitOutcome {
    let key = || ClientKey::from_lines(key_lines);
    guard::admit(filter, policy, head, declared_length, key)
}

impl GrantedRequest {
    /// Runs the handler, which gets the head, the mark of the call and the bytes of the body. From
    /// its first wait on, the call has a task on this thread (HTTP-12).
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the call goes on.
    ///
    /// # Panics
    /// A panic of the handler resumes here after its lease was released (HTTP-7). Outside of a
    /// `LocalSet`, a call that waits cannot be spawned, and panics.
    pub fn run_local<H, R, E, F, Fut>(
        self,
        admitted: AdmittedRequest,
        head: H,
        pre_grant: Option<&PreGrant>,
        handler: F,
    ) -> impl Future<Output = Result<HandlerResponse<R>, E>> + use<H, R, E, F, Fut>
    where
        H: RequestHead + 'static,
        R: Body<Data = Bytes> + 'static,
        E: 'static,
        F: FnOnce(H, CallMark, Bytes) -> Fut + 'static,
        Fut: Future<Output = Result<Response<R>, E>> + 'static,
    {
        let filter = admitted.filter.clone();
        let handles = pre_grant.and_then(PreGrant::take_handles);
        let handler = move |head, mark, body, _| handler(head, mark, body);
        let call = start_call(self, admitted, head, handles, handler);
        run_to_end(call, filter, tokio::task::spawn_local)
    }
}

/// A body that was guarded, for a framework with body types of its own.
#[derive(Debug)]
pub enum BodyParts<B> {
    /// All bytes, and the trailers.
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// To be read.
    Streaming(GuardedBody<B>),
}

impl<B> From<GuardedBody<B>> for BodyParts<B> {
    fn from(body: GuardedBody<B>) -> Self {
        match body.into_whole() {
            Ok(whole) => whole.into(),
            Err(body) => Self::Streaming(body),
        }
    }
}

impl<B> From<ReplayBody> for BodyParts<B> {
    fn from(body: ReplayBody) -> Self {
        let (data, trailers) = body.into_parts();
        Self::Whole(data, trailers)
    }
}

/// The response of a handler that has no transaction: a problem, marked by [`Fate`](crate::Fate) as
/// not to be stored, and by [`NoTx`] as one that the guard replaces by the filter's own.
#[must_use]
pub fn transaction_error_response(error: &TxError) -> Response<Bytes> {
    error.to_response()
}
