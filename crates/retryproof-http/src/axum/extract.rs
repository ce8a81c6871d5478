// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extractors for the key, the lease and the transaction of a guarded call (ANN-6, CMP-7).

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;

use axum_core::extract::{FromRef, FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::request::Parts;
use retryproof_core::JoinedEngine;

use crate::call::{CallMark, LeaseCell, PreGrant};
use crate::protocol::key::ClientKey;
use crate::transaction::{GuardedTx, TxError};

tokio::task_local! {
    /// The key and the handles that extractors can get before the grant, when the request's
    /// extensions have no mark yet.
    pub(super) static PRE_GRANT: PreGrant;
}

/// Extracts the client's key in a guarded handler: `key: IdempotencyKey`. `Debug` shows only the
/// length of the key (ID-4).
///
/// Where keys are optional (`web.required = false`), take `Option<IdempotencyKey>`; a request
/// without a key is not guarded.
/// ```
/// use retryproof_http::axum::IdempotencyKey;
///
/// async fn pay(key: Option<IdempotencyKey>) -> String {
///     match key {
///         Some(key) => format!("guarded by a key of {} bytes", key.as_str().len()),
///         None => "not guarded".to_owned(),
///     }
/// }
/// ```
#[derive(Clone)]
pub struct IdempotencyKey(ClientKey);

impl IdempotencyKey {
    /// Returns the decoded key. Do not log the key, because it can be personal data or a
    /// credential.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    // Prefer the key in `PRE_GRANT`, because the `CallMark` in the extensions might have been
    // copied from an outer request.
    fn of(parts: &Parts) -> Option<Self> {
        let pre_grant = PRE_GRANT.try_with(|pre_grant| pre_grant.client_key().clone()).ok();
        pre_grant
            .or_else(|| parts.extensions.get().map(|mark: &CallMark| mark.client_key().clone()))
            .map(Self)
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.as_str().len())
    }
}

/// The lease of the running handler. Take it as `lease: Lease`, and call methods such as
/// `lease.downstream_key("charge")` and `lease.attempt()`.
///
/// Where keys are optional, take `Option<Lease>`; a request without a key is not guarded and has no
/// lease.
///
/// ```
/// use retryproof_core::Attempt;
/// use retryproof_http::axum::Lease;
///
/// async fn pay(lease: Lease) -> &'static str {
///     match lease.attempt() {
///         Attempt::First => "charge",
///         // The earlier run may have charged: check before charging again.
///         Attempt::Takeover => "reconcile, then charge",
///     }
/// }
/// ```
/// # Panics
/// Dereferencing a `Lease` before the grant panics. A handler can always dereference its lease. A
/// custom extractor must not, because the extractors of an annotated endpoint run before the grant.
#[derive(Clone)]
pub struct Lease(LeaseCell);

impl Lease {
    /// Returns the lease, or `None` before the grant. A handler never gets `None`.
    #[must_use]
    pub fn get(&self) -> Option<&retryproof_core::Lease> {
        self.0.get()
    }

    fn of(parts: &Parts) -> Option<Self> {
        let pre_grant = PRE_GRANT.try_with(PreGrant::lease).ok();
        let running = || parts.extensions.get().map(|mark: &CallMark| LeaseCell::from(mark));
        pre_grant.or_else(running).map(Self)
    }
}

impl Deref for Lease {
    type Target = retryproof_core::Lease;

    fn deref(&self) -> &retryproof_core::Lease {
        self.get().expect("a lease should be dereferenced only in a handler, after it was granted")
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.get()).finish()
    }
}

/// The rejection of a key or lease extractor when the request is not guarded. The response is a
/// 500, because such an extractor in an unguarded handler is a bug in the application.
#[derive(Debug, Clone, Copy)]
pub struct NotGuarded(());

impl fmt::Display for NotGuarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the request is not guarded, so the handler's argument for the key, the lease or the \
             transaction has no value: the request has no key, its method is not guarded, or its \
             route has neither `#[idempotent(http)]` nor the layer; if keys are optional, declare \
             the argument as an `Option`",
        )
    }
}

impl std::error::Error for NotGuarded {}

impl IntoResponse for NotGuarded {
    fn into_response(self) -> Response {
        tracing::error!("{self}");
        (http::StatusCode::INTERNAL_SERVER_ERROR, "the request is not guarded").into_response()
    }
}

macro_rules! extractor {
    ($name:ident) => {
        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = NotGuarded;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotGuarded> {
                Self::of(parts).ok_or(NotGuarded(()))
            }
        }

        impl<S: Send + Sync> OptionalFromRequestParts<S> for $name {
            type Rejection = Infallible;

            async fn from_request_parts(
                parts: &mut Parts,
                _: &S,
            ) -> Result<Option<Self>, Infallible> {
                Ok(Self::of(parts))
            }
        }
    };
}

extractor!(IdempotencyKey);
extractor!(Lease);

/// A router state that has a [`JoinedEngine`] for transactions of type `T`, and provides it through
/// `FromRef`.
#[diagnostic::on_unimplemented(
    message = "the state `{Self}` has no `JoinedEngine<{T}>`",
    label = "`GuardedTx<{T}>` needs it to open transactions",
    note = "derive `FromRef` for the state and give it a field of type `JoinedEngine<{T}>`, made \
         at start-up by `engine.joined(source)?`"
)]
pub trait HasJoinedEngine<T> {
    /// The engine.
    fn joined(&self) -> JoinedEngine<T>;
}

#[diagnostic::do_not_recommend]
impl<S, T> HasJoinedEngine<T> for S
where
    JoinedEngine<T>: FromRef<S>,
{
    fn joined(&self) -> JoinedEngine<T> {
        JoinedEngine::from_ref(self)
    }
}

/// Why a handler cannot get a [`GuardedTx`]. Each variant is a bug in the application, so the
/// response is a 500.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum GuardedTxRejection {
    /// The request is not guarded. Where keys are optional, take an `Option<GuardedTx<T>>`.
    NotGuarded(NotGuarded),
    /// Another argument has a transaction of a different type. One response cannot end two
    /// transactions.
    Another,
}

impl fmt::Display for GuardedTxRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotGuarded(rejection) => write!(f, "{rejection}"),
            Self::Another => f.write_str(
                "two arguments of the handler need transactions of different types, but a request \
                 has only one transaction; use the same type for both arguments",
            ),
        }
    }
}

impl std::error::Error for GuardedTxRejection {}

impl IntoResponse for GuardedTxRejection {
    fn into_response(self) -> Response {
        match self {
            Self::NotGuarded(rejection) => rejection.into_response(),
            Self::Another => {
                tracing::error!("{self}");
                (
                    http::StatusCode::INTERNAL_SERVER_ERROR,
                    "the endpoint's arguments need transactions of two different types",
                )
                    .into_response()
            }
        }
    }
}

impl<S, T> FromRequestParts<S> for GuardedTx<T>
where
    S: HasJoinedEngine<T> + Send + Sync,
    T: Send + 'static,
{
    type Rejection = GuardedTxRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, GuardedTxRejection> {
        match PRE_GRANT.try_with(|pre_grant| pre_grant.guarded_tx(|| state.joined())) {
            Ok(tx) => tx.ok_or(GuardedTxRejection::Another),
            Err(_) if parts.extensions.get::<CallMark>().is_none() => {
                Err(GuardedTxRejection::NotGuarded(NotGuarded(())))
            }
            Err(_) => {
                Self::of(&parts.extensions, &state.joined()).ok_or(GuardedTxRejection::Another)
            }
        }
    }
}

impl<S, T> OptionalFromRequestParts<S> for GuardedTx<T>
where
    S: HasJoinedEngine<T> + Send + Sync,
    T: Send + 'static,
{
    type Rejection = GuardedTxRejection;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &S,
    ) -> Result<Option<Self>, GuardedTxRejection> {
        match <Self as FromRequestParts<S>>::from_request_parts(parts, state).await {
            Ok(tx) => Ok(Some(tx)),
            Err(GuardedTxRejection::NotGuarded(_)) => Ok(None),
            Err(rejection) => Err(rejection),
        }
    }
}

impl IntoResponse for TxError {
    fn into_response(self) -> Response {
        self.to_response().map(axum_core::body::Body::from)
    }
}
