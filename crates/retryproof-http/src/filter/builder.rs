// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`FilterBuilder`]: the settings and hooks of a filter, checked by `build`.
//!
//! This file is over 400 lines long because most settings have an example.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Response, StatusCode, response};
use retryproof_core::{
    Error, ErrorKind, FingerprintMode, IdempotencyEngine, IdempotencyStore as _, WebConfig,
};

use super::caller::{
    CallerConfigured, CallerFuture, CallerHook, CallerSet, CallersShareKeys, IntoCaller, NoCaller,
};
use super::{EditHook, FateHook, FingerprintMethod, FormatHook, IdempotencyFilter, Inner};
use crate::fate::AnswerFate;
use crate::protocol::fingerprint::{
    FIRST_CUSTOM_ALGORITHM, FingerprintAlgorithm, FingerprintRequest,
};
use crate::protocol::problem::Problem;
use crate::protocol::stored::FieldRules;
use crate::switches::Switches;

/// Builds an [`IdempotencyFilter`]. `C` is the state of the caller setting: [`NoCaller`],
/// [`CallerSet`] or [`CallersShareKeys`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct FilterBuilder<C> {
    settings: FilterSettings,
    callers: C,
}

/// Every setting except the caller setting.
struct FilterSettings {
    engine: IdempotencyEngine,
    web: WebConfig,
    fingerprint: Option<Box<dyn FingerprintRequest>>,
    subject: Option<Arc<CallerHook>>,
    fields: FieldRules,
    edit: Option<Arc<EditHook>>,
    fate: Option<Arc<FateHook>>,
    release_on_rollback: bool,
    format: Option<Arc<FormatHook>>,
}

impl FilterBuilder<NoCaller> {
    pub(super) fn new(engine: IdempotencyEngine) -> Self {
        let web = engine.config().web.clone();
        let settings = FilterSettings {
            engine,
            web,
            fingerprint: None,
            subject: None,
            fields: FieldRules::default(),
            edit: None,
            fate: None,
            release_on_rollback: false,
            format: None,
        };
        Self { settings, callers: NoCaller(()) }
    }

    /// Sets a hook that returns the caller of a request. The filter adds the caller to every key
    /// (HTTP-16). An empty string also counts as a caller. If the hook finds no caller, the request
    /// is refused with the problem `caller-missing`: see [`challenge`](FilterBuilder::challenge).
    ///
    /// The hook sees the request's head, with the extensions that outer layers and an annotated
    /// endpoint's extractors have put there. The hook runs inline, for every guarded request with a
    /// key. It can refuse the request with a response.
    /// ```
    /// # use retryproof_core::IdempotencyEngine;
    /// # use retryproof_memory::MemoryStore;
    /// use http::{Response, request::Parts};
    /// use retryproof_http::IdempotencyFilter;
    ///
    /// /// The authentication layer, outside the guard, inserts this.
    /// #[derive(Clone)]
    /// struct Tenant { id: String, suspended: bool }
    ///
    /// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
    ///     .caller(|request: &Parts| match request.extensions.get::<Tenant>() {
    ///         Some(tenant) if tenant.suspended => {
    ///             Err(Response::builder().status(402).body("the account is suspended").unwrap())
    ///         }
    ///         // `None` is refused with `caller-missing`.
    ///         tenant => Ok(tenant.map(|tenant| tenant.id.clone())),
    ///     })
    ///     .build()?;
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    pub fn caller<R: IntoCaller>(
        self,
        hook: impl Fn(&Parts) -> R + Send + Sync + 'static,
    ) -> FilterBuilder<CallerSet> {
        self.with_callers(CallerSet::new(Arc::new(move |request| {
            CallerFuture::Now(hook(request).into_caller())
        })))
    }

    /// Like [`caller`](Self::caller), but with an asynchronous hook, such as one that reads a
    /// session store or fetches the key that verifies a token. The hook's future cannot borrow the
    /// head, so the hook must copy what the future needs. The future runs before the body is read
    /// and before the lease is acquired. It costs one allocation per request. If the client
    /// disconnects, the future is dropped.
    ///
    /// ```
    /// use retryproof_core::IdempotencyEngine;
    /// use retryproof_memory::MemoryStore;
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
    ) -> FilterBuilder<CallerSet>
    where
        Fut: Future<Output: IntoCaller> + Send + 'static,
    {
        self.with_callers(CallerSet::new(Arc::new(move |request| {
            let caller = hook(request);
            CallerFuture::Later(Box::pin(async move { caller.await.into_caller() }))
        })))
    }

    /// Uses keys as the clients send them, without adding a caller. The application must ensure
    /// that no two callers use the same key: either keys are unguessable, or there is only one
    /// caller.
    /// # When to use
    /// Use this setting for an internal service with one client. Also use it where clients generate
    /// random keys (UUIDs), if an attacker who learns a key can do no harm with the stored
    /// response. Otherwise use [`caller`](Self::caller).
    pub fn callers_share_keys(self) -> FilterBuilder<CallersShareKeys> {
        self.with_callers(CallersShareKeys(()))
    }

    fn with_callers<C>(self, callers: C) -> FilterBuilder<C> {
        FilterBuilder { settings: self.settings, callers }
    }
}

impl FilterBuilder<CallerSet> {
    /// Treats all requests for which the hook finds no caller as requests of one caller. These
    /// requests share keys, and see each other's responses. This caller is distinct from every
    /// named caller, and from the callers of a filter with
    /// [`callers_share_keys`](FilterBuilder::callers_share_keys). By default, a request without a
    /// caller is refused.
    /// # When to use
    /// Use this setting for endpoints that guests also use, such as a checkout without an account,
    /// provided that guests generate random keys.
    ///
    /// ```
    /// # use retryproof_core::IdempotencyEngine;
    /// # use retryproof_memory::MemoryStore;
    /// use http::request::Parts;
    /// use retryproof_http::IdempotencyFilter;
    ///
    /// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
    ///     .caller(|request: &Parts| request.extensions.get::<String>().cloned())
    ///     .absent_callers_share()
    ///     .build()?;
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    pub fn absent_callers_share(mut self) -> Self {
        self.callers.absent_share();
        self
    }

    /// Sets the `WWW-Authenticate` value for requests that are refused because the hook found no
    /// caller, for example `Bearer realm="payments"`. The status is 401 if a challenge is set, and
    /// 403 otherwise (HTTP-16).
    pub fn challenge(mut self, challenge: impl Into<String>) -> Self {
        self.callers.challenge(challenge.into());
        self
    }
}

impl<C> FilterBuilder<C> {
    /// Uses these `web` settings instead of the engine's.
    /// ```
    /// # use retryproof_core::IdempotencyEngine;
    /// # use retryproof_memory::MemoryStore;
    /// use retryproof_http::IdempotencyFilter;
    ///
    /// let engine = IdempotencyEngine::new(MemoryStore::new());
    /// let mut web = engine.config().web.clone();
    /// web.required = false; // requests without a key pass unguarded
    /// let filter = IdempotencyFilter::builder(engine).config(web).callers_share_keys().build()?;
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    pub fn config(mut self, web: WebConfig) -> Self {
        self.settings.web = web;
        self
    }

    /// Fingerprints requests with this algorithm instead of `web.fingerprint` (FP-3).
    pub fn fingerprint(mut self, fingerprint: impl FingerprintRequest) -> Self {
        self.settings.fingerprint = Some(Box::new(fingerprint));
        self
    }

    /// Sets a hook that names the subject of each response: the person or tenant whom the response
    /// is about. If the store has sealed results, the response is sealed with the key of this
    /// subject (SEAL-3). Without a hook, and where the hook finds no subject, the subject is the
    /// caller. Without a caller, the requests of a scope share one subject.
    ///
    /// The hook has the form of a [caller hook](FilterBuilder::caller), and can refuse the request.
    /// It runs inline after the body was read, for every guarded request with a key, but only if the
    /// store has sealed results.
    /// # When to use
    /// Set this hook if one caller, such as a shop, sends requests about many people, or if callers
    /// share keys.
    /// ```
    /// # use retryproof_core::IdempotencyEngine;
    /// # use retryproof_memory::MemoryStore;
    /// use http::request::Parts;
    /// use retryproof_http::IdempotencyFilter;
    ///
    /// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
    ///     .callers_share_keys()
    ///     .subject(|request: &Parts| {
    ///         request.headers.get("x-customer")?.to_str().ok().map(str::to_owned)
    ///     })
    ///     .build()?;
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    pub fn subject<R: IntoCaller>(
        mut self,
        hook: impl Fn(&Parts) -> R + Send + Sync + 'static,
    ) -> Self {
        self.settings.subject =
            Some(Arc::new(move |request| CallerFuture::Now(hook(request).into_caller())));
        self
    }

    /// Stores a field that is not stored by default: Set-Cookie, WWW-Authenticate,
    /// Authentication-Info or Clear-Site-Data (HTTP-9). Every retry then gets the cookie or
    /// challenge of the first response again.
    pub fn store_header(mut self, name: &'static str) -> Self {
        self.settings.fields.store(name);
        self
    }

    /// Excludes a field from storage, without a warning (HTTP-9). The first response still contains
    /// the field.
    /// ```
    /// # use retryproof_core::IdempotencyEngine;
    /// # use retryproof_memory::MemoryStore;
    /// use retryproof_http::IdempotencyFilter;
    ///
    /// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
    ///     .callers_share_keys()
    ///     .store_header("set-cookie") // a retry of the login needs the session too
    ///     .skip_header("x-request-id") // belongs to one request
    ///     .build()?;
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    pub fn skip_header(mut self, name: &'static str) -> Self {
        self.settings.fields.skip(name);
        self
    }

    /// Sets a hook that edits the header fields before they are stored (HTTP-9). The first response
    /// keeps its original fields. `HeaderMap::remove` can reorder the other fields. If the hook
    /// panics, a tombstone with only the status is recorded instead of the response (CMP-9).
    /// ```
    /// # use retryproof_core::IdempotencyEngine;
    /// # use retryproof_memory::MemoryStore;
    /// use retryproof_http::IdempotencyFilter;
    ///
    /// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
    ///     .callers_share_keys()
    ///     .edit_stored(|status, headers| {
    ///         if status.is_server_error() {
    ///             headers.remove("server-timing");
    ///         }
    ///     })
    ///     .build()?;
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    pub fn edit_stored(
        mut self,
        hook: impl Fn(StatusCode, &mut HeaderMap) + Send + Sync + 'static,
    ) -> Self {
        self.settings.edit = Some(Arc::new(hook));
        self
    }

    /// Sets a hook that decides the fate of responses without a mark, based on status and header
    /// fields (HTTP-7). If the hook panics, the response is stored. Without a hook, the policy and
    /// the configuration choose the statuses to store (HTTP-19). An unmarked 405 behind a layer
    /// counts as the router's response, and always frees its key (HTTP-1).
    ///
    /// ```
    /// use http::StatusCode;
    /// use retryproof_core::IdempotencyEngine;
    /// use retryproof_memory::MemoryStore;
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
    /// [`AnswerFate::Release`] frees the key: the next request runs the work again. Return this
    /// fate only for responses that prove that nothing happened. In actix-web the hook sees status
    /// and header fields, but no extensions. Over gRPC, a response without a message has its status
    /// in the field `grpc-status`.
    pub fn fate(
        mut self,
        hook: impl Fn(&response::Parts) -> AnswerFate + Send + Sync + 'static,
    ) -> Self {
        self.settings.fate = Some(Arc::new(hook));
        self
    }

    /// Frees the key if an unmarked response with a status of 400 or above made the guard roll back
    /// the handler's transaction. The response is then sent but not stored (CMP-7).
    ///
    /// By default, such a response is stored and replayed, because the handler may have done more
    /// than write in the transaction. Use this setting if handlers do all of their work in the
    /// transaction. The setting has no effect on a call whose handler did not begin its
    /// [`GuardedTx`](crate::GuardedTx).
    pub fn release_on_rollback(mut self) -> Self {
        self.settings.release_on_rollback = true;
        self
    }

    /// Renders the filter's own responses with a hook, instead of as RFC 9457 problems (HTTP-11).
    /// The hook must set the status, `Retry-After` and `Cache-Control`; the filter adds
    /// `Connection: close` if an HTTP/1.x connection has to be closed. The hook runs inline, and
    /// only for the filter's own responses, which are never stored.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Response, header::RETRY_AFTER};
    /// use retryproof_core::IdempotencyEngine;
    /// use retryproof_memory::MemoryStore;
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
        self.settings.format = Some(Arc::new(format));
        self
    }

    /// Checks the settings and creates the filter.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if a setting or the challenge is invalid. The error names the setting
    /// and its value, or the challenge.
    pub fn build(self) -> Result<IdempotencyFilter, Error>
    where
        C: CallerConfigured,
    {
        let FilterSettings {
            engine,
            web,
            fingerprint,
            subject,
            fields,
            edit,
            fate,
            release_on_rollback,
            format,
        } = self.settings;
        web.validate()?;
        let callers = self.callers.into_callers()?.0;
        let key_header = HeaderName::from_bytes(web.key_header.as_bytes()).map_err(|_| {
            Error::new(ErrorKind::Config, "`web.key-header` is not a valid header name")
                .with("value", &web.key_header)
        })?;
        let fingerprint = match fingerprint {
            None => FingerprintMethod::BuiltIn(match web.fingerprint {
                FingerprintMode::Request => FingerprintAlgorithm::Request,
                FingerprintMode::Body => FingerprintAlgorithm::Body,
                FingerprintMode::Json => FingerprintAlgorithm::Json,
            }),
            Some(custom) if custom.algorithm() >= FIRST_CUSTOM_ALGORITHM => {
                FingerprintMethod::Custom(custom.into())
            }
            Some(custom) => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "the algorithm byte of a custom fingerprint must be between 128 and 255",
                )
                .with("algorithm", custom.algorithm()));
            }
        };
        let switches = Switches::new(engine.config());
        if switches.ignore_members()
            && !matches!(fingerprint, FingerprintMethod::BuiltIn(FingerprintAlgorithm::Json))
        {
            return Err(Error::new(
                ErrorKind::Config,
                "a scope has the setting `fingerprint-ignore`, which needs the fingerprint `json`, \
                 but this filter has a different fingerprint; remove the setting, or use the \
                 fingerprint `json`",
            ));
        }
        if fate.is_some() && switches.choose_statuses() {
            tracing::warn!(
                "the setting `store` of a scope has no effect, because the filter's `fate` hook \
                 decides which responses are stored; remove the hook or the setting (HTTP-19)"
            );
        }
        let max_value = engine.store().profile().max_value;
        Ok(IdempotencyFilter(Arc::new(Inner {
            max_response: web.max_response_bytes.min(max_value),
            max_value,
            key_header,
            fingerprint,
            switches: Arc::new(switches),
            callers,
            subject,
            fields,
            edit,
            fate,
            release_on_rollback,
            format,
            ticket: AtomicU32::new(0),
            warned: Arc::default(),
            web,
            engine,
        })))
    }
}

impl<C: fmt::Debug> fmt::Debug for FilterBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterBuilder")
            .field("engine", &self.settings.engine)
            .field("web", &self.settings.web)
            .field("callers", &self.callers)
            .finish_non_exhaustive()
    }
}
