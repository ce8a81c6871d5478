// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data types of a guarded call, in the order of its stages: [`AdmittedRequest`], [`PreGrant`],
//! [`PreparedRequest`], [`GrantedRequest`], [`CallMark`], [`RunningCall`]. Each type holds what one
//! stage passes to the next. The logic is in the stages, except for one step in this file: filling
//! the handles that an endpoint's arguments hold.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, Method, Version};
use pin_project_lite::pin_project;
use retryproof_core::{CompletionResult, HeldLease, IdempotencyContext, Lease, Payload, Tombstone};
use tracing::Span;

use crate::filter::{IdempotencyFilter, Inner};
use crate::head::Route;
use crate::header_map::SpecialFields;
use crate::policy::CallTerms;
use crate::protocol::key::{ClientKey, KeyError};
use crate::switches::PolicySwitches;

mod pre_grant;

pub(crate) use pre_grant::GrantHandles;
pub use pre_grant::{LeaseCell, PreGrant};

/// A request with a well-formed key, at a guarded endpoint. The request's head is passed
/// separately.
pub struct AdmittedRequest {
    pub(crate) filter: IdempotencyFilter,
    pub(crate) terms: CallTerms,
    pub(crate) key: ClientKey,
}

impl AdmittedRequest {
    /// Returns the key and the handles that extractors can get before the grant.
    #[must_use]
    pub fn pre_grant(&self) -> PreGrant {
        PreGrant::new(self.key.clone())
    }
}

impl fmt::Debug for AdmittedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmittedRequest").finish_non_exhaustive()
    }
}

/// The parts of a prepared request that the engine and the handler need.
pub(crate) struct PreparedRequest {
    pub(crate) context: IdempotencyContext,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<Box<HeaderMap>>,
}

/// The grant of an admitted request. The request's head is passed separately.
///
/// If the grant is dropped, nothing has run, but the key stays held until the lease runs out. So do
/// not await anything between the grant and the run.
#[must_use]
pub struct GrantedRequest {
    pub(crate) request: PreparedRequest,
    pub(crate) lease: Lease,
    /// The same lease, for the function that ends it; `None` after that function has taken it.
    pub(crate) held: Option<HeldLease>,
    /// The span of the call; disabled if no subscriber records it.
    pub(crate) span: Span,
}

impl fmt::Debug for GrantedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantedRequest").finish_non_exhaustive()
    }
}

/// A request extension that marks the running call. The mark tells an inner guard that the route is
/// already guarded, and under which key and lease (HTTP-15). A replay creates no mark.
#[derive(Clone)]
pub struct CallMark(Arc<CallState>);

struct CallState {
    filter: IdempotencyFilter,
    route: Route,
    version: Version,
    key: ClientKey,
    lease: Lease,
    switches: PolicySwitches,
    /// Whether a layer guards the call. Behind a layer, a router can respond in place of the
    /// handler (HTTP-1).
    layered: bool,
    /// The call's transaction, if the handler takes one (CMP-7).
    tx: OnceLock<Arc<dyn CallTransaction>>,
}

impl CallMark {
    /// Marks a call as granted, and fills the handles that extractors took.
    pub(crate) fn new(
        admitted: AdmittedRequest,
        route: Route,
        version: Version,
        lease: &Lease,
        handles: Option<Box<GrantHandles>>,
    ) -> Self {
        let tx = OnceLock::new();
        if let Some(wanted) = handles.and_then(|handles| handles.fill(lease)) {
            let _ = tx.set(wanted);
        }
        let AdmittedRequest { filter, terms, key } = admitted;
        let (switches, layered) = (terms.switches, terms.is_layered);
        let lease = lease.clone();
        Self(Arc::new(CallState { filter, route, version, key, lease, switches, layered, tx }))
    }

    /// Returns the route of the call.
    pub(crate) fn route(&self) -> &Route {
        &self.0.route
    }

    pub(crate) fn version(&self) -> Version {
        self.0.version
    }

    pub(crate) fn filter(&self) -> &Inner {
        &self.0.filter.0
    }

    /// Returns the switches that the policy sets.
    pub(crate) fn switches(&self) -> PolicySwitches {
        self.0.switches
    }

    /// Whether a request belongs to this call. It does if it has the call's key or no key, or if
    /// `filter` reads keys from a different header than the call's filter. An in-process request
    /// for the same route is a separate call if it has its own key.
    pub(crate) fn has_same_key(
        &self,
        filter: &IdempotencyFilter,
        key: &Result<Option<ClientKey>, KeyError>,
    ) -> bool {
        if self.0.filter.0.key_header != filter.0.key_header {
            return true;
        }
        match key {
            Ok(Some(key)) => key.as_bytes() == self.0.key.as_bytes(),
            Ok(None) => true,
            Err(_) => false,
        }
    }

    #[cfg(feature = "axum")]
    pub(crate) fn client_key(&self) -> &ClientKey {
        &self.0.key
    }

    /// The client's key, decoded.
    #[must_use]
    pub fn key(&self) -> &str {
        self.0.key.as_str()
    }

    /// Returns the lease of the call.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.0.lease
    }

    /// Returns the call's transaction, and creates it with `make` if it does not exist yet.
    pub(crate) fn tx_or(
        &self,
        make: impl FnOnce() -> Arc<dyn CallTransaction>,
    ) -> Arc<dyn CallTransaction> {
        Arc::clone(self.0.tx.get_or_init(make))
    }
}

impl fmt::Debug for CallMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallMark").finish_non_exhaustive()
    }
}

pin_project! {
    /// A call whose handler is running, with everything needed to end the call. The call is boxed,
    /// so the stages pass on only a pointer. The call also holds the handler's response body. The
    /// guard reads the body in place, without another allocation, and the connection then reads the
    /// rest, if any.
    pub(crate) struct RunningCall<R> {
        mark: CallMark,
        // The grant stays in its box, so that no stage has to move it. The handler shares the
        // request's body. If the call ends as a duplicate of a record with a different fingerprint
        // algorithm, this body is fingerprinted again (FP-3).
        granted: Box<GrantedRequest>,
        fields: SpecialFields,
        #[pin]
        response_body: Option<R>,
    }
}

impl<R> RunningCall<R> {
    pub(crate) fn new(mark: CallMark, granted: Box<GrantedRequest>) -> Self {
        Self { mark, granted, fields: SpecialFields::default(), response_body: None }
    }

    pub(crate) fn context(&self) -> &IdempotencyContext {
        &self.granted.request.context
    }

    /// Returns the fields of the handler's response that need special treatment.
    pub(crate) fn fields(&self) -> SpecialFields {
        self.fields
    }

    pub(crate) fn set_fields(self: Pin<&mut Self>, fields: SpecialFields) {
        *self.project().fields = fields;
    }

    pub(crate) fn mark(&self) -> &CallMark {
        &self.mark
    }

    pub(crate) fn filter(&self) -> &Inner {
        self.mark.filter()
    }

    pub(crate) fn method(&self) -> &Method {
        self.mark.route().method()
    }

    pub(crate) fn request_body(&self) -> &Bytes {
        &self.granted.request.body
    }

    /// Whether a layer guards the call.
    pub(crate) fn is_layered(&self) -> bool {
        self.mark.0.layered
    }

    /// Whether the handler took a transaction, even one that it never opened.
    pub(crate) fn has_tx(&self) -> bool {
        self.mark.0.tx.get().is_some()
    }

    /// Takes the handler's transaction, to end it. A second call returns `None`.
    pub(crate) fn take_tx(&self) -> TakenTransaction {
        self.mark.0.tx.get().map_or(TakenTransaction::None, |tx| tx.take())
    }

    /// Rolls back the handler's transaction, and returns whether it was open (CMP-7). A transaction
    /// that is still in use elsewhere rolls back when its last user drops it; nothing commits it.
    pub(crate) fn roll_back(&self) -> impl Future<Output = bool> + Send + use<R> {
        let taken = self.take_tx();
        async move {
            let TakenTransaction::Open(tx) = taken else { return false };
            tx.roll_back().await;
            true
        }
    }

    pub(crate) fn take_lease(self: Pin<&mut Self>) -> Option<HeldLease> {
        self.project().granted.held.take()
    }

    /// Stores the response body here, so that it can be read.
    pub(crate) fn set_response_body(self: Pin<&mut Self>, body: R) {
        self.project().response_body.set(Some(body));
    }

    pub(crate) fn response_body_mut(self: Pin<&mut Self>) -> Option<Pin<&mut R>> {
        self.project().response_body.as_pin_mut()
    }

    pub(crate) fn response_body(&self) -> Option<&R> {
        self.response_body.as_ref()
    }

    /// Frees the request's bytes. Called after the call has ended, when only its response body
    /// remains to be sent.
    pub(crate) fn forget_request(self: Pin<&mut Self>) {
        self.project().granted.request.body = Bytes::new();
    }
}

/// A call's transaction of any type.
pub(crate) trait CallTransaction: Send + Sync {
    /// Marks the lease as granted: from now on the transaction can be opened.
    fn grant(&self);

    /// Takes the transaction, to end it.
    fn take(&self) -> TakenTransaction;

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// The state of a call's transaction after the handler has returned.
pub(crate) enum TakenTransaction {
    /// The handler opened no transaction.
    None,
    /// The transaction is open and must be ended.
    Open(Box<dyn OpenTransaction>),
    /// Something that outlives the handler still holds the transaction.
    Kept,
}

/// The value that is recorded for a response: the whole response, or a tombstone.
pub(crate) enum CompletionValue {
    Response(Payload),
    Tombstone(Tombstone),
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An open transaction of any type. Dropping the transaction rolls it back.
pub(crate) trait OpenTransaction: Send {
    fn commit(
        self: Box<Self>,
        lease: HeldLease,
        value: CompletionValue,
    ) -> BoxFuture<CompletionResult>;
    fn roll_back(self: Box<Self>) -> BoxFuture<()>;
}
