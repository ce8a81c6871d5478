// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdempotencyFilter`]: an engine with the settings and hooks of the web, and its builder.
//!
//! Over 400 lines because a third of them are the documentation of the builder's methods.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::response;
use http::{HeaderMap, HeaderName, Response, StatusCode};
use retryproof_core::{
    Error, ErrorKind, FingerprintMode, IdempotencyEngine, IdempotencyStore as _, WebConfig,
};

use crate::caller::{
    Answering, Callers, CallersSaid, CallersShareKeys, CallersUnsaid, IntoCaller, SaysWhoCalls,
};
use crate::decide::Settings;
use crate::digest::{Algorithm, FIRST_CUSTOM_ALGORITHM, FingerprintRequest};
use crate::fate::AnswerFate;
use crate::headers::FieldPolicy;
use crate::layer::IdempotencyLayer;
use crate::policy::Policy;
use crate::problem::Problem;

/// Scopes remembered as warned about; a method of the client's choosing is part of a default scope,
/// so there is a cap.
const MOST_WARNED: usize = 1024;

/// Guards endpoints: the first request with a key runs, every retry gets its stored answer. Cheap
/// to clone; clones are one filter.
///
/// A filter is not built without a word on who the caller is (HTTP-16): two tenants that choose the
/// same key must not see each other's answers.
///
/// ```
/// use retryproof_core::{IdempotencyEngine, MemoryStore};
/// use retryproof_http::IdempotencyFilter;
///
/// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
///     .caller(|request: &http::request::Parts| {
///         // Put there by the authentication layer, which stands outside.
///         request.extensions.get::<String>().cloned()
///     })
///     .build()?;
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Clone)]
pub struct IdempotencyFilter(pub(crate) Arc<Inner>);

pub(crate) type FateHook = dyn Fn(&response::Parts) -> AnswerFate + Send + Sync;
type EditHook = dyn Fn(StatusCode, &mut HeaderMap) + Send + Sync;
type FormatHook = dyn Fn(&Problem) -> Response<Bytes> + Send + Sync;

pub(crate) struct Inner {
    pub(crate) engine: IdempotencyEngine,
    pub(crate) web: WebConfig,
    pub(crate) key_header: HeaderName,
    pub(crate) fingerprint: Fingerprinter,
    pub(crate) callers: Callers,
    pub(crate) fields: FieldPolicy,
    pub(crate) edit: Option<Arc<EditHook>>,
    /// Of answers without a mark (HTTP-7).
    pub(crate) fate: Option<Arc<FateHook>>,
    pub(crate) release_on_rollback: bool,
    pub(crate) format: Option<Arc<FormatHook>>,
    /// The lower of `max-response-bytes` and what the store takes (HTTP-13).
    pub(crate) max_response: usize,
    /// What the store takes in one value, envelope included.
    pub(crate) max_value: usize,
    ticket: AtomicU32,
    warned: Mutex<HashSet<String>>,
    warned_layered: AtomicBool,
    warned_unmatched: AtomicBool,
}

/// How requests are fingerprinted (FP-3).
#[derive(Debug, Clone)]
pub(crate) enum Fingerprinter {
    BuiltIn(Algorithm),
    Custom(Arc<dyn FingerprintRequest>),
}

impl IdempotencyFilter {
    /// Starts a filter on an engine, with the `web` settings of the engine's configuration.
    pub fn builder(engine: IdempotencyEngine) -> FilterBuilder<CallersUnsaid> {
        let web = engine.config().web.clone();
        FilterBuilder {
            engine,
            web,
            fingerprint: None,
            fields: FieldPolicy::default(),
            edit: None,
            fate: None,
            release_on_rollback: false,
            format: None,
            callers: CallersUnsaid(()),
        }
    }

    /// The layer that guards a route under `policy`:
    /// `post(refund).route_layer(filter.guard(Policy::new("refunds")))`. What it guards is said by
    /// [`Policy::methods`] and [`Policy::with_unmatched`] (HTTP-1).
    #[must_use]
    pub fn guard(&self, policy: Policy) -> IdempotencyLayer {
        IdempotencyLayer::new(self.clone(), policy)
    }

    /// The same filter, on the same engine and with the same hooks, with another form of its own
    /// answers: for a server that speaks two protocols. See [`FilterBuilder::rejections`].
    #[must_use]
    pub fn with_rejections(
        &self,
        format: impl Fn(&Problem) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        let old = &*self.0;
        Self(Arc::new(Inner {
            engine: old.engine.clone(),
            web: old.web.clone(),
            key_header: old.key_header.clone(),
            fingerprint: old.fingerprint.clone(),
            callers: old.callers.clone(),
            fields: old.fields.clone(),
            edit: old.edit.clone(),
            fate: old.fate.clone(),
            release_on_rollback: old.release_on_rollback,
            format: Some(Arc::new(format)),
            max_response: old.max_response,
            max_value: old.max_value,
            ticket: AtomicU32::new(0),
            warned: Mutex::default(),
            warned_layered: AtomicBool::new(false),
            warned_unmatched: AtomicBool::new(false),
        }))
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &IdempotencyEngine {
        &self.0.engine
    }

    /// Starts no more work, still replays what is done, waits for running handlers up to `deadline`
    /// from now, and says how many were left; their leases run out (RUN-5). Call it after the
    /// server has stopped accepting: a server's own graceful shutdown does not wait for handlers
    /// whose client went away.
    ///
    /// # Cancel safety
    /// Dropped, the filter stays closed.
    pub async fn shutdown(&self, deadline: Duration) -> usize {
        self.0.engine.shutdown(deadline).await
    }
}

impl fmt::Debug for IdempotencyFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyFilter")
            .field("engine", &self.0.engine)
            .field("web", &self.0.web)
            .field(
                "callers",
                &if self.0.callers.hook().is_some() { "told apart" } else { "share keys" },
            )
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// What the decision table depends on.
    pub(crate) fn settings(&self) -> Settings<'_> {
        Settings {
            required: self.web.required,
            key_header: &self.web.key_header,
            in_flight_status: self.web.in_flight_status,
            challenge: self.callers.challenge(),
        }
    }

    /// The next number that spreads `Retry-After` (HTTP-14).
    pub(crate) fn ticket(&self) -> u32 {
        self.ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// Says once per scope which field was not stored (HTTP-9).
    pub(crate) fn warn_unstored(&self, scope: &str, field: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() < MOST_WARNED && !warned.contains(scope) {
            warned.insert(scope.to_owned());
            tracing::warn!(
                scope,
                field,
                "an answer's field is not stored and will be missing from replays; switch it \
                 with `store_header` or `skip_header` (said once per scope, HTTP-9)"
            );
        }
    }

    /// Says once that a layer stands around an annotated handler of the same route (HTTP-15).
    pub(crate) fn warn_layered(&self, scope: Option<&str>) {
        if !self.warned_layered.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                scope,
                "a guarded endpoint stands behind the guard of the same route; the outer policy \
                 is in force (said once, HTTP-15)"
            );
        }
    }

    /// Says once that a fallback is not guarded, though its layer names a scope (HTTP-1).
    pub(crate) fn warn_unmatched(&self, scope: &str) {
        if !self.warned_unmatched.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                scope,
                "a request with a key matched no route and passes unguarded; a fallback that does work needs \
                 `Policy::with_unmatched` (said once, HTTP-1)"
            );
        }
    }
}

/// Builds an [`IdempotencyFilter`]. `C` says whether the caller question is answered.
#[must_use = "a builder does nothing until `build`"]
pub struct FilterBuilder<C> {
    engine: IdempotencyEngine,
    web: WebConfig,
    fingerprint: Option<Box<dyn FingerprintRequest>>,
    fields: FieldPolicy,
    edit: Option<Arc<EditHook>>,
    fate: Option<Arc<FateHook>>,
    release_on_rollback: bool,
    format: Option<Arc<FormatHook>>,
    callers: C,
}

impl FilterBuilder<CallersUnsaid> {
    /// Folds what the hook says into every key: empty and `a` are two callers (HTTP-16). A request
    /// whose hook finds none is refused with the problem `caller-missing`: see
    /// [`challenge`](FilterBuilder::challenge). The hook sees the request's head with what outer
    /// layers (and, at an annotated endpoint, its own extractors) put into the extensions; it may
    /// refuse with a response of its own. It runs inline, on every guarded request with a key.
    pub fn caller<R: IntoCaller>(
        self,
        hook: impl Fn(&Parts) -> R + Send + Sync + 'static,
    ) -> FilterBuilder<CallersSaid> {
        self.said(CallersSaid::new(Arc::new(move |request| {
            Answering::Now(hook(request).into_caller())
        })))
    }

    /// As [`caller`](Self::caller), with a hook that waits for something: a look at a session
    /// store, a key to check a token by. What it needs of the head it takes before it waits. It
    /// ends before the body is read and before anything is acquired; it costs each request an
    /// allocation. A client that goes away drops it.
    ///
    /// ```
    /// use retryproof_core::{IdempotencyEngine, MemoryStore};
    /// use retryproof_http::IdempotencyFilter;
    ///
    /// async fn tenant_of(token: &str) -> Option<String> {
    ///     Some(format!("the tenant of {token}"))
    /// }
    ///
    /// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
    ///     .caller_async(|request: &http::request::Parts| {
    ///         let token = request.headers.get("authorization").cloned();
    ///         async move { tenant_of(token?.to_str().ok()?).await }
    ///     })
    ///     .challenge("Bearer")
    ///     .build()?;
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    pub fn caller_async<Fut>(
        self,
        hook: impl Fn(&Parts) -> Fut + Send + Sync + 'static,
    ) -> FilterBuilder<CallersSaid>
    where
        Fut: Future<Output: IntoCaller> + Send + 'static,
    {
        self.said(CallersSaid::new(Arc::new(move |request| {
            let answering = hook(request);
            Answering::Later(Box::pin(async move { answering.await.into_caller() }))
        })))
    }

    /// Says that the application sees to it: keys are unguessable, or there is one caller.
    pub fn callers_share_keys(self) -> FilterBuilder<CallersShareKeys> {
        self.said(CallersShareKeys(()))
    }

    fn said<C>(self, callers: C) -> FilterBuilder<C> {
        let Self {
            engine,
            web,
            fingerprint,
            fields,
            edit,
            fate,
            release_on_rollback,
            format,
            callers: _,
        } = self;
        FilterBuilder {
            engine,
            web,
            fingerprint,
            fields,
            edit,
            fate,
            release_on_rollback,
            format,
            callers,
        }
    }
}

impl FilterBuilder<CallersSaid> {
    /// Makes all requests whose hook finds no caller one caller, told apart from every named one,
    /// and from the callers of a filter with
    /// [`callers_share_keys`](FilterBuilder::callers_share_keys): they share keys, and see each
    /// other's answers. Unless said, such a request is refused.
    pub fn absent_callers_share(mut self) -> Self {
        self.callers.absent_share();
        self
    }

    /// The `WWW-Authenticate` of a refusal when the hook finds no caller: 401 with it, as
    /// `Bearer realm="payments"`; without one the refusal is 403 (HTTP-16).
    pub fn challenge(mut self, challenge: impl Into<String>) -> Self {
        self.callers.challenge(challenge.into());
        self
    }
}

impl<C> FilterBuilder<C> {
    /// Takes these `web` settings instead of the engine's.
    pub fn config(mut self, web: WebConfig) -> Self {
        self.web = web;
        self
    }

    /// Fingerprints requests by this instead of `web.fingerprint` (FP-3).
    pub fn fingerprint(mut self, fingerprint: impl FingerprintRequest) -> Self {
        self.fingerprint = Some(Box::new(fingerprint));
        self
    }

    /// Stores a field that is not stored by default: Set-Cookie, WWW-Authenticate,
    /// Authentication-Info or Clear-Site-Data (HTTP-9). Every retry then gets the first caller's
    /// cookie or challenge again.
    pub fn store_header(mut self, name: &'static str) -> Self {
        self.fields.store(name);
        self
    }

    /// Leaves a field out of what is stored, without a warning (HTTP-9). The first answer still
    /// carries it.
    pub fn skip_header(mut self, name: &'static str) -> Self {
        self.fields.skip(name);
        self
    }

    /// Edits the header fields that are about to be stored (HTTP-9); the first answer is not
    /// touched. A map's `remove` may reorder the other fields. A panic of the hook counts as a
    /// value that cannot be encoded (CMP-9).
    pub fn edit_stored(
        mut self,
        hook: impl Fn(StatusCode, &mut HeaderMap) + Send + Sync + 'static,
    ) -> Self {
        self.edit = Some(Arc::new(hook));
        self
    }

    /// Decides what becomes of the answers that carry no mark of their own, by status and fields
    /// (HTTP-7). Without a hook they are stored. Where it panics, the answer is stored.
    ///
    /// ```
    /// use http::StatusCode;
    /// use retryproof_core::{IdempotencyEngine, MemoryStore};
    /// use retryproof_http::{AnswerFate, IdempotencyFilter};
    ///
    /// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
    ///     .callers_share_keys()
    ///     .fate(|response| match response.status {
    ///         // This service answers 429 before it does anything.
    ///         StatusCode::TOO_MANY_REQUESTS => AnswerFate::Release,
    ///         // It is not known what happened behind the gateway.
    ///         StatusCode::GATEWAY_TIMEOUT => AnswerFate::Hold,
    ///         _ => AnswerFate::Store,
    ///     })
    ///     .build()?;
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    /// [`AnswerFate::Release`] frees the key: the work runs again. Return it only for answers that
    /// prove that nothing happened. In actix-web the hook sees status and fields, and no
    /// extensions; over gRPC the status is the field `grpc-status` of an answer without a message.
    pub fn fate(
        mut self,
        hook: impl Fn(&response::Parts) -> AnswerFate + Send + Sync + 'static,
    ) -> Self {
        self.fate = Some(Arc::new(hook));
        self
    }

    /// Frees the key when the guard has rolled the handler's transaction back because of its
    /// answer, 400 or above, and the answer carries no mark; it is sent and not stored (CMP-7).
    /// Without this it is stored and replayed, for something else may have happened besides the
    /// writes: ask for it where all that handlers do is in their transaction. A handler that did
    /// not begin its [`GuardedTx`](crate::GuardedTx) has rolled nothing back.
    pub fn release_on_rollback(mut self) -> Self {
        self.release_on_rollback = true;
        self
    }

    /// Renders the filter's own answers, instead of RFC 9457 problems (HTTP-11). Status,
    /// `Retry-After` and `Cache-Control` are the hook's to set; what has to close an HTTP/1.x
    /// connection does so all the same. The hook runs inline, for each answer of the filter's own
    /// and for no other; they are never stored.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Response, header::RETRY_AFTER};
    /// use retryproof_core::{IdempotencyEngine, MemoryStore};
    /// use retryproof_http::{IdempotencyFilter, Problem};
    ///
    /// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
    ///     .callers_share_keys()
    ///     .rejections(|problem: &Problem| {
    ///         let mut response = Response::new(Bytes::from(format!("refused: {}\n", problem.code)));
    ///         *response.status_mut() = problem.status.try_into().unwrap_or_default();
    ///         if let Some(seconds) = problem.retry_after {
    ///             response.headers_mut().insert(RETRY_AFTER, seconds.into());
    ///         }
    ///         response
    ///     })
    ///     .build()?;
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    pub fn rejections(
        mut self,
        format: impl Fn(&Problem) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.format = Some(Arc::new(format));
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] naming the key and the value, or the challenge.
    pub fn build(self) -> Result<IdempotencyFilter, Error>
    where
        C: SaysWhoCalls,
    {
        let Self {
            engine,
            web,
            fingerprint,
            fields,
            edit,
            fate,
            release_on_rollback,
            format,
            callers,
        } = self;
        web.validate()?;
        let callers = callers.said()?.0;
        let key_header = HeaderName::from_bytes(web.key_header.as_bytes()).map_err(|_| {
            Error::new(ErrorKind::Config, "`web.key-header` is not the name of a header")
                .with("value", &web.key_header)
        })?;
        let fingerprint = match fingerprint {
            None => Fingerprinter::BuiltIn(match web.fingerprint {
                FingerprintMode::Request => Algorithm::Request,
                FingerprintMode::Body => Algorithm::Body,
                FingerprintMode::Json => Algorithm::Json,
            }),
            Some(custom) if custom.algorithm() >= FIRST_CUSTOM_ALGORITHM => {
                Fingerprinter::Custom(custom.into())
            }
            Some(custom) => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "a fingerprint of one's own has an algorithm byte of 128 to 255",
                )
                .with("algorithm", custom.algorithm()));
            }
        };
        let max_value = engine.store().profile().max_value;
        Ok(IdempotencyFilter(Arc::new(Inner {
            max_response: web.max_response_bytes.min(max_value),
            max_value,
            key_header,
            fingerprint,
            callers,
            fields,
            edit,
            fate,
            release_on_rollback,
            format,
            ticket: AtomicU32::new(0),
            warned: Mutex::default(),
            warned_layered: AtomicBool::new(false),
            warned_unmatched: AtomicBool::new(false),
            web,
            engine,
        })))
    }
}

impl<C: fmt::Debug> fmt::Debug for FilterBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterBuilder")
            .field("engine", &self.engine)
            .field("web", &self.web)
            .field("callers", &self.callers)
            .finish_non_exhaustive()
    }
}
