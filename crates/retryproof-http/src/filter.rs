// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdempotencyFilter`]: an engine with the settings and hooks for HTTP.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, StatusCode, response};
use retryproof_core::{IdempotencyEngine, WebConfig};

use crate::fate::AnswerFate;
use crate::protocol::decide::DecisionSettings;
use crate::protocol::fingerprint::{FingerprintAlgorithm, FingerprintRequest};
use crate::protocol::problem::Problem;
use crate::protocol::stored::FieldRules;
use crate::switches::Switches;

mod builder;
mod caller;

pub use builder::FilterBuilder;
pub(crate) use caller::{Absent, CallerHook, CallerIdentity, Callers};
pub use caller::{
    Caller, CallerConfigured, CallerFuture, CallerSet, CallersShareKeys, IntoCaller, NoCaller,
};

/// The maximum number of scopes that a filter warns about. Default scopes contain the method, which
/// the client chooses, so clients could otherwise fill the memory.
const MAX_WARNED_SCOPES: usize = 1024;

/// Guards endpoints: the first request with a key runs, and every retry gets the stored response. A
/// filter is cheap to clone, and its clones share their state.
///
/// Two tenants that choose the same key must not see each other's responses. So `build()` does not
/// compile until `.caller(..)` or `.callers_share_keys()` is called (HTTP-16).
///
/// ```
/// use retryproof_core::IdempotencyEngine;
/// use retryproof_memory::MemoryStore;
/// use retryproof_http::IdempotencyFilter;
///
/// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
///     .caller(|request: &http::request::Parts| {
///         // The authentication layer, outside the guard, inserts this.
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
    pub(crate) fingerprint: FingerprintMethod,
    /// The settings that the configuration changes for individual scopes.
    pub(crate) switches: Arc<Switches>,
    pub(crate) callers: Callers,
    /// Names the data subject of the response (SEAL-3).
    pub(crate) subject: Option<Arc<CallerHook>>,
    pub(crate) fields: FieldRules,
    pub(crate) edit: Option<Arc<EditHook>>,
    /// Decides the fate of responses without a mark (HTTP-7).
    pub(crate) fate: Option<Arc<FateHook>>,
    pub(crate) release_on_rollback: bool,
    pub(crate) format: Option<Arc<FormatHook>>,
    /// The lower of `max-response-bytes` and the store's own limit (HTTP-13).
    pub(crate) max_response: usize,
    /// The store's limit for one value, including the envelope.
    pub(crate) max_value: usize,
    ticket: AtomicU32,
    warned: Arc<Warned>,
}

/// The warnings that have already been logged, by this filter or by a copy of it with another
/// response format.
#[derive(Default)]
struct Warned {
    /// The scopes for which a warning about an unstored field was logged.
    unstored: Mutex<HashSet<String>>,
    layered: AtomicBool,
    unmatched: AtomicBool,
    void: AtomicBool,
}

/// How requests are fingerprinted (FP-3).
#[derive(Debug, Clone)]
pub(crate) enum FingerprintMethod {
    BuiltIn(FingerprintAlgorithm),
    Custom(Arc<dyn FingerprintRequest>),
}

impl IdempotencyFilter {
    /// Starts building a filter for an engine, with the `web` settings of the engine's
    /// configuration.
    pub fn builder(engine: IdempotencyEngine) -> FilterBuilder<NoCaller> {
        FilterBuilder::new(engine)
    }

    /// Returns a filter with the same engine and hooks that renders its own responses in another
    /// format. Use it in a server with two protocols. See [`FilterBuilder::rejections`].
    /// ```
    /// # use retryproof_core::IdempotencyEngine;
    /// # use retryproof_memory::MemoryStore;
    /// use bytes::Bytes;
    /// use http::Response;
    /// use retryproof_http::{IdempotencyFilter, Problem};
    ///
    /// # let engine = IdempotencyEngine::new(MemoryStore::new());
    /// let json = IdempotencyFilter::builder(engine).callers_share_keys().build()?;
    /// // The old API of the same server answers in plain text.
    /// let text = json.with_rejections(|problem: &Problem| {
    ///     let mut response = Response::new(Bytes::from(problem.detail.clone().into_owned()));
    ///     *response.status_mut() = problem.status.try_into().unwrap_or_default();
    ///     response
    /// });
    /// # drop(text);
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
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
            switches: Arc::clone(&old.switches),
            callers: old.callers.clone(),
            subject: old.subject.clone(),
            fields: old.fields.clone(),
            edit: old.edit.clone(),
            fate: old.fate.clone(),
            release_on_rollback: old.release_on_rollback,
            format: Some(Arc::new(format)),
            max_response: old.max_response,
            max_value: old.max_value,
            ticket: AtomicU32::new(0),
            warned: Arc::clone(&old.warned),
        }))
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> &IdempotencyEngine {
        &self.0.engine
    }

    /// Stops granting new work, and waits up to `deadline` for running handlers and for completions
    /// in the background. Returns the number of those that are unfinished; their leases run out
    /// (RUN-5). Completed requests are still replayed. Call this method after the server has
    /// stopped accepting connections. A server's graceful shutdown does not wait for handlers whose
    /// client disconnected.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use retryproof_core::IdempotencyEngine;
    /// # use retryproof_memory::MemoryStore;
    /// # use retryproof_http::IdempotencyFilter;
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # let engine = IdempotencyEngine::new(MemoryStore::new());
    /// let filter = IdempotencyFilter::builder(engine).callers_share_keys().build()?;
    /// // axum::serve(listener, app).with_graceful_shutdown(signal).await?;
    /// let left = filter.shutdown(Duration::from_secs(20)).await;
    /// if left > 0 {
    ///     eprintln!("{left} handlers are still running; their leases run out");
    /// }
    /// # Ok::<(), retryproof_core::Error>(())
    /// # }).unwrap();
    /// ```
    /// # Cancel safety
    /// If the future is dropped, the filter stays shut down.
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
    /// Returns the settings that the decision table depends on.
    pub(crate) fn settings(&self) -> DecisionSettings<'_> {
        DecisionSettings {
            required: self.web.required,
            key_header: &self.web.key_header,
            in_flight_status: self.web.in_flight_status,
            challenge: self.callers.challenge(),
        }
    }

    /// Returns the next value of the counter that makes `Retry-After` vary (HTTP-14).
    pub(crate) fn ticket(&self) -> u32 {
        self.ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// Warns once per scope about a field that is not stored (HTTP-9).
    pub(crate) fn warn_unstored(&self, scope: &str, field: &str) {
        let mut warned = self.warned.unstored.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() < MAX_WARNED_SCOPES && !warned.contains(scope) {
            warned.insert(scope.to_owned());
            tracing::warn!(
                scope,
                field,
                "a header field of a response is not stored, so replays will not have it; to store \
                 the field, call `store_header`; to leave it out without this warning, call \
                 `skip_header` (logged once per scope, HTTP-9)"
            );
        }
    }

    /// Warns once that a layer wraps an annotated handler of the same route (HTTP-15).
    pub(crate) fn warn_layered(&self, scope: Option<&str>) {
        if !self.warned.layered.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                scope,
                "a route has two guards, one inside the other, and only the policy of the outer \
                 guard applies; remove one of the guards (logged once, HTTP-15)"
            );
        }
    }

    /// Warns once that the fate hook overrides the policy's choice of stored statuses (HTTP-19).
    pub(crate) fn warn_void(&self, scope: Option<&str>) {
        if !self.warned.void.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                scope,
                "`Policy::with_stored` has no effect, because the filter's `fate` hook decides \
                 which responses are stored; remove the hook or the call of `with_stored` (logged \
                 once, HTTP-19)"
            );
        }
    }

    /// Warns once that a fallback is not guarded although its layer names a scope (HTTP-1).
    pub(crate) fn warn_unmatched(&self, scope: &str) {
        if !self.warned.unmatched.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                scope,
                "a request with an idempotency key matched no route and was not guarded; if the \
                 router's fallback performs work, set `Policy::with_unmatched` (logged once, \
                 HTTP-1)"
            );
        }
    }
}
