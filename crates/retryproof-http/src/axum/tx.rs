// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GuardedTx`] as an extractor. It is a handle: extracting it opens nothing (ANN-6, CMP-7).

use std::fmt;

use axum_core::extract::{FromRef, FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::request::Parts;
use retryproof_core::JoinedEngine;

use super::{NotGuarded, PRE_GRANT};
use crate::call::CallMark;
use crate::transaction::GuardedTx;

/// A router state that has a [`JoinedEngine`] for transactions of the type `T`: every state from
/// which one can be taken by `FromRef`.
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

/// Why a handler cannot have a [`GuardedTx`]: 500, because it is a bug of the application.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum GuardedTxRejection {
    /// The request is not guarded. Where keys are optional, take an `Option<GuardedTx<T>>`.
    NotGuarded(NotGuarded),
    /// Another argument has a transaction of another type, and one response cannot end both.
    Another,
}

impl fmt::Display for GuardedTxRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotGuarded(rejection) => write!(f, "{rejection}"),
            Self::Another => f.write_str(
                "a guarded request has one transaction; two arguments ask for different ones",
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
                (http::StatusCode::INTERNAL_SERVER_ERROR, "the request has two transactions")
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
