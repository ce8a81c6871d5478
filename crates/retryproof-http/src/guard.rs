// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stages of a guarded request. Every front end calls [`admit`] with the request's head, then
//! [`acquire`], and then runs the handler of a granted request. For `tower` and axum, [`guarded`]
//! does the last two steps.
//!
//! 1. [`admit`] checks the key, the declared length, and whether the request is already guarded.
//! 2. An annotated endpoint extracts all arguments except the body.
//! 3. [`acquire`] prepares scope, caller, body and fingerprint (`prepare.rs`), then calls the
//!    engine. A request that is not granted gets its response from `duplicate.rs`, and holds no
//!    lease.
//! 4. `run.rs` runs the handler, and `record.rs` records its response. The guard spawns no task
//!    before the grant, except to fingerprint a large JSON body.

use std::future::Future;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use retryproof_core::{Acquiring, Acquisition, EndedAcquire};
use tracing::Instrument as _;

use crate::body::{BoxError, FromReplay, GuardedBody, ReplayBody};
use crate::call::{AdmittedRequest, CallMark, GrantHandles, GrantedRequest};
use crate::duplicate::DuplicateRequest;
use crate::filter::IdempotencyFilter;
use crate::head::{AdmittedHead, RequestHead};
use crate::policy::{GuardPolicy, Policy};
use crate::prepare::prepare;
use crate::protocol::decide::{Decision, Finding, OversizeBody, decide};
use crate::protocol::key::{ClientKey, KeyError};
use crate::response::{FrameworkResponse, HandlerResponse, ResponseContext};
use crate::run::{run_to_end, start_call, with_request};

/// The decision about a request, based on its head alone.
#[derive(Debug)]
pub enum AdmitOutcome {
    /// Pass the request on unchanged: the guard does not apply to it. Remove any fate mark from the
    /// response, because the mark belongs to no guarded call.
    PassThrough,
    /// Pass the request on: it belongs to a call that is already guarded. The response keeps its
    /// fate mark for that call (HTTP-15).
    Inside,
    /// Send this response.
    Refused(Response<ReplayBody>),
    /// Continue with [`acquire`].
    Admitted(AdmittedRequest),
}

impl GuardPolicy {
    /// Returns the policy of a layer on this filter. Warns once if the filter's fate hook overrides
    /// the policy's choice of stored statuses (HTTP-19).
    #[must_use]
    pub fn layer(filter: &IdempotencyFilter, policy: Policy) -> Self {
        let layer = Self::Layer(policy);
        if layer.terms().switches.stored.is_some() && filter.0.fate.is_some() {
            filter.0.warn_void(layer.scope());
        }
        layer
    }
}

/// Checks from a request's head whether the request is already guarded, and whether its key and
/// declared length are acceptable (HTTP-2 to HTTP-4, HTTP-15).
pub(crate) fn admit(
    filter: &IdempotencyFilter,
    policy: &GuardPolicy,
    head: &impl RequestHead,
    declared_length: impl FnOnce() -> u64,
    key: impl FnOnce() -> Result<Option<ClientKey>, KeyError>,
) -> AdmitOutcome {
    let is_guarded = policy.guards(|| head.method());
    let outer = head.extension::<CallMark>();
    let outer = outer.filter(|outer| outer.route().covers(&head.route()));
    if !is_guarded && outer.is_none() {
        return AdmitOutcome::PassThrough;
    }
    let key = key();
    if outer.is_some_and(|outer| outer.has_same_key(filter, &key)) {
        if is_guarded {
            filter.0.warn_layered(policy.scope());
        }
        return AdmitOutcome::Inside;
    }
    if !is_guarded {
        return AdmitOutcome::PassThrough;
    }
    let web = &filter.0.web;
    let is_optional = matches!(key, Ok(None)) && !web.required;
    if !is_optional && policy.passes_unmatched() && head.is_unmatched() {
        if let (Some(scope), Ok(Some(_))) = (policy.scope(), &key) {
            filter.0.warn_unmatched(scope);
        }
        return AdmitOutcome::PassThrough;
    }
    let limit = web.max_body_bytes;
    let finding = match key {
        Ok(Some(key)) if declared_length() <= limit as u64 => {
            let (filter, terms) = (filter.clone(), policy.terms());
            return AdmitOutcome::Admitted(AdmittedRequest { filter, terms, key });
        }
        Ok(Some(_)) => Finding::BodyTooLarge { read: OversizeBody::Declared, limit },
        Ok(None) => Finding::NoKey,
        Err(error) => Finding::BadKey(error),
    };
    match decide(finding, &filter.0.settings()) {
        Decision::Refuse(problem) => {
            AdmitOutcome::Refused(ResponseContext::of_head(&filter.0, head).render(&problem))
        }
        Decision::Pass => AdmitOutcome::PassThrough,
    }
}

/// Prepares the request and acquires its lease. If the request is not granted, returns the response
/// to send as an `Err`. After a grant, run the handler without awaiting anything else first.
///
/// The stages borrow the request, because a future that owned the request would hold it twice. The
/// future is `Send` if the request is.
///
/// # Errors
/// The response to send instead of running the handler.
///
/// # Cancel safety
/// If the future is dropped, nothing has run and no lease is left (ACQ-11).
pub async fn acquire<H, B, A>(
    admitted: &AdmittedRequest,
    head: &mut H,
    body: B,
) -> Result<Box<GrantedRequest>, A>
where
    H: AdmittedHead,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
    A: FrameworkResponse,
{
    let mut request = match prepare(admitted, head, body).await {
        Ok(request) => request,
        Err(refusal) => return Err(A::from_refusal(*refusal)),
    };
    let engine = &admitted.filter.0.engine;
    engine.identify(&mut request.context);
    let span = engine.call_span(&request.context);
    let acquiring = span.in_scope(|| engine.begin_acquire(&request.context));
    let EndedAcquire { acquired, began } = match acquiring {
        Acquiring::Done(ended) => ended,
        Acquiring::Waiting(rest) => rest.instrument(span.clone()).await,
    };
    match acquired {
        Ok(Acquisition::Granted(held)) => {
            let lease = held.lease().clone();
            Ok(Box::new(GrantedRequest { request, lease, held: Some(held), span }))
        }
        acquired => Err(span.in_scope(|| {
            DuplicateRequest::of(admitted, &*head, &request).respond(acquired, began)
        })),
    }
}

/// Guards an admitted request: reads its body, acquires the lease, then runs the handler with the
/// bytes that were read (HTTP-5, HTTP-12).
///
/// # Cancel safety
/// If the future is dropped before the grant, nothing has run and no lease is left (ACQ-11). If it
/// is dropped later, the handler continues.
///
/// # Panics
/// If the handler panics, the guard first ends the lease. The panic then resumes here (HTTP-7).
#[expect(clippy::manual_async_fn, reason = "the future of an `async fn` would be larger")]
pub(crate) fn guarded<B, R, E, F, Fut>(
    admitted: AdmittedRequest,
    parts: Box<Parts>,
    body: B,
    handles: Option<Box<GrantHandles>>,
    handler: F,
) -> impl Future<Output = Result<Response<GuardedBody<R>>, E>> + Send
where
    B: FromReplay + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    E: Send + 'static,
    F: FnOnce(Request<B>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<R>, E>> + Send + 'static,
{
    async move {
        let mut parts = parts;
        let granted = match acquire(&admitted, &mut parts, body).await {
            Ok(granted) => granted,
            Err(response) => return Ok(Response::map(response, GuardedBody::replay)),
        };
        let filter = admitted.filter.clone();
        let call = start_call(granted, admitted, parts, handles, with_request(handler));
        let response = run_to_end(call, filter, tokio::spawn).await;
        response.map(HandlerResponse::into_response)
    }
}
