// SPDX-License-Identifier: MIT OR Apache-2.0
//! Support for adapters to other web frameworks, such as `retryproof-actix`. With this module, an
//! adapter can guard requests of any type, and handlers that have to stay on their connection's
//! thread.
//!
//! Applications should not use this module. The module keeps the same promises as the layer, but
//! its names may change in any version.
//!
//! [`admit`] decides from the request's head alone whether to guard, pass on or refuse the request.
//! For an admitted request, [`acquire`] returns either a response to send or a grant;
//! [`GrantedRequest::run_local`] then runs the handler. Stages, responses and records are the same
//! as in the tower layer. A handler's response is converted to types of the `http` crate; requests
//! and replays are not.

use std::future::Future;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response};
use http_body::Body;

use crate::body::{GuardedBody, ReplayBody};
use crate::filter::{CallerIdentity, IdempotencyFilter};
use crate::guard;
use crate::prepare;
use crate::protocol::key::ClientKey;
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

/// Returns the name of the header that carries the key.
#[must_use]
pub fn key_header(filter: &IdempotencyFilter) -> &HeaderName {
    &filter.0.key_header
}

/// Returns the filter's limit on a request body, in bytes.
#[must_use]
pub fn max_body_bytes(filter: &IdempotencyFilter) -> usize {
    filter.0.web.max_body_bytes
}

/// Returns the key under which a filter stores the record of the client's `key` (HTTP-16). `caller`
/// is the name that the filter's hook returned, or `None` if the filter's callers share keys. The
/// command `retryproof` looks for records under this key.
#[must_use]
pub fn stored_key(caller: Option<&str>, key: &str) -> String {
    let caller = match caller {
        Some(caller) => CallerIdentity::Named(caller.to_owned()),
        None => CallerIdentity::Anyone,
    };
    prepare::stored_key(&caller, key)
}

/// Like [`stored_key`], but for a request in which the hook of a filter with
/// [`absent_callers_share`](crate::FilterBuilder::absent_callers_share) found no caller.
#[must_use]
pub fn stored_key_of_absent_caller(key: &str) -> String {
    prepare::stored_key(&CallerIdentity::Absent, key)
}

/// Checks from a request's head whether the request is already guarded, and whether its key and
/// declared length are acceptable (HTTP-2 to HTTP-4, HTTP-15). `declared_length` returns 0 if the
/// request declares no length; `key_lines` are the lines of the [key header](key_header).
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
    /// Runs the handler with the head, the call's mark and the body's bytes. If the first poll does
    /// not finish the call, the call continues in a task on this thread (HTTP-12).
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the call continues.
    ///
    /// # Panics
    /// If the handler panics, the guard first ends the lease. The panic then resumes here (HTTP-7).
    /// Outside a `LocalSet`, `run_local` also panics if the call has to wait, because the call
    /// cannot be spawned there.
    pub fn run_local<H, R, E, F, Fut>(
        self: Box<Self>,
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

/// The body of a guarded response, for a framework with its own body types.
#[derive(Debug)]
pub enum BodyParts<B> {
    /// The whole body, with its trailers.
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// A body that has not yet been read to its end.
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

/// Returns the response of a handler that could not get a transaction. Two extensions of the
/// response control the guard: because of [`AnswerFate::Release`](crate::AnswerFate::Release), it
/// does not store the response, and because of [`NoTx`], it sends one of the filter's own problems
/// instead.
#[must_use]
pub fn transaction_error_response(error: &TxError) -> Response<Bytes> {
    error.to_response()
}
