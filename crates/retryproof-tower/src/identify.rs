// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Identify`]: determines the unit of work of a request.

use retryproof_core::{ContextBuilder, Error, IdempotencyContext, IntoScope, Lease};

/// Identifies the unit of work of a request. Every `Fn(&Req) -> impl IntoContext` implements this
/// trait. Implement the trait yourself to pass the lease to the inner service too.
///
/// ```
/// use retryproof_core::Lease;
/// use retryproof_tower::Identify;
///
/// struct Charge { order: String, provider_key: Option<String> }
///
/// #[derive(Clone)]
/// struct ByOrder;
///
/// impl Identify<Charge> for ByOrder {
///     type Context = (&'static str, String);
///
///     fn identify(&self, charge: &Charge) -> Self::Context {
///         ("charges", charge.order.clone())
///     }
///
///     fn granted(&self, charge: &mut Charge, lease: &Lease) {
///         // Stays the same after a takeover.
///         charge.provider_key = Some(lease.downstream_key("charge"));
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name the scope and the key of a `{Req}`",
    label = "expected a function of the request",
    note = "pass a closure `|request: &{Req}| (scope, key)`, or implement `Identify<{Req}>`"
)]
pub trait Identify<Req> {
    /// A scope and a key, a context, or a `Result` of one of these.
    type Context: IntoContext;

    /// Returns the unit of work. The layer calls this method once per request, before the acquire.
    /// The method must not block. A panic propagates to the caller.
    fn identify(&self, request: &Req) -> Self::Context;

    /// Receives the lease of the run, after the grant and before the inner service runs. Use the
    /// lease to derive downstream keys, to read the fencing token, or to see whether the run is a
    /// takeover. The default implementation does nothing. A panic counts as a panic of the service
    /// (RUN-4).
    fn granted(&self, request: &mut Req, lease: &Lease) {
        let _ = (request, lease);
    }
}

impl<Req, F, X> Identify<Req> for F
where
    F: Fn(&Req) -> X,
    X: IntoContext,
{
    type Context = X;

    fn identify(&self, request: &Req) -> X {
        self(request)
    }
}

/// What an extractor can return: `(scope, key)`, a [`ContextBuilder`] (for a fingerprint), or a
/// `Result` of one of these. An error refuses the request.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a scope and a key",
    label = "this type does not identify a call",
    note = "return `(scope, key)`, a `ContextBuilder`, or a `Result` of one of these; the scope \
            is a `&'static str` or a `Scope`"
)]
pub trait IntoContext {
    /// Returns the context. The layer then adds its own durations and validates the result.
    ///
    /// # Errors
    /// Returns the extractor's error if the request has no usable key. The inner service then does
    /// not run.
    fn into_context(self) -> Result<ContextBuilder, Error>;
}

impl<S: IntoScope, K: AsRef<str>> IntoContext for (S, K) {
    fn into_context(self) -> Result<ContextBuilder, Error> {
        Ok(IdempotencyContext::builder(self.0, self.1))
    }
}

impl IntoContext for ContextBuilder {
    fn into_context(self) -> Result<ContextBuilder, Error> {
        Ok(self)
    }
}

impl<C: IntoContext> IntoContext for Result<C, Error> {
    fn into_context(self) -> Result<ContextBuilder, Error> {
        self?.into_context()
    }
}
