// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extractors for the key, the lease and the transaction of a guarded request.

use std::fmt;
use std::future::{Ready, ready};
use std::ops::Deref;
use std::rc::Rc;

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{FromRequest, HttpMessage as _, HttpRequest, HttpResponse, ResponseError};
use retryproof_core::JoinedEngine;
use retryproof_http::adapter::{CallMark, LeaseCell, NoTx, transaction_error_response};
use retryproof_http::{Fate as _, OpenTx};

use crate::answer::of_filter;
use crate::endpoint::ExtractionContext;
use crate::fate::WithFate as _;

/// The state of a guarded request: either its arguments are being extracted, or its handler is
/// running.
enum Guarded {
    Extracting(Rc<ExtractionContext>),
    Running(CallMark),
}

impl Guarded {
    fn of(request: &HttpRequest) -> Option<Self> {
        let running = || request.extensions().get::<CallMark>().cloned().map(Self::Running);
        ExtractionContext::of(request).map(Self::Extracting).or_else(running)
    }
}

/// Why an extractor found no guarded request or no transaction. Each case is a bug in the
/// application, so the response is a 500.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotGuarded {
    /// The request has no key, or its method or route is not guarded. If keys are optional, declare
    /// the argument as an `Option`.
    Unguarded,
    /// The app's data has no `JoinedEngine` for transactions of the argument's type. Add the engine
    /// with `.app_data(web::Data::new(joined))`.
    NoJoinedEngine,
    /// Two arguments need transactions of different types, but a request has only one transaction.
    AnotherTx,
}

impl fmt::Display for NotGuarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unguarded => {
                "the request is not guarded, so the handler's argument for the key, the lease or \
                 the transaction has no value: the request has no key, its method is not guarded, \
                 or its route has neither `#[idempotent(http)]` nor the middleware; if keys are \
                 optional, declare the argument as an `Option`"
            }
            Self::NoJoinedEngine => {
                "the app data contains no `JoinedEngine` for the transaction type of the handler; \
                 add one with `.app_data(web::Data::new(joined))`"
            }
            Self::AnotherTx => {
                "two arguments of the handler need transactions of different types, but a request \
                 has only one transaction; use the same type for both arguments"
            }
        })
    }
}

impl std::error::Error for NotGuarded {}

impl ResponseError for NotGuarded {
    fn status_code(&self) -> StatusCode {
        StatusCode::INTERNAL_SERVER_ERROR
    }

    fn error_response(&self) -> HttpResponse {
        tracing::error!("{self}");
        HttpResponse::build(self.status_code()).body("the endpoint is misconfigured")
    }
}

/// The client's key in a guarded handler. Declare it as `key: IdempotencyKey`. `Debug` shows only
/// the key's length (ID-4).
#[derive(Clone)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Returns the decoded key. Do not log the key, because it can be personal data or a
    /// credential.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.0.len())
    }
}

impl FromRequest for IdempotencyKey {
    type Error = NotGuarded;
    type Future = Ready<Result<Self, NotGuarded>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(match Guarded::of(request) {
            Some(Guarded::Extracting(context)) => Ok(Self(context.pre_grant.key().to_owned())),
            Some(Guarded::Running(mark)) => Ok(Self(mark.key().to_owned())),
            None => Err(NotGuarded::Unguarded),
        })
    }
}

/// The lease of the running handler. Declare it as `lease: Lease`, then call, for example,
/// `lease.downstream_key("charge")` or `lease.attempt()`.
///
/// # Panics
/// Panics if the value is dereferenced before the lease is granted. A handler can always
/// dereference its lease. A custom extractor must not, because the extractors of an annotated
/// endpoint run before the grant.
#[derive(Clone)]
pub struct Lease(LeaseCell);

impl Lease {
    /// Returns the lease, or `None` before the grant. A handler never gets `None`.
    #[must_use]
    pub fn get(&self) -> Option<&retryproof_core::Lease> {
        self.0.get()
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

impl FromRequest for Lease {
    type Error = NotGuarded;
    type Future = Ready<Result<Self, NotGuarded>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(match Guarded::of(request) {
            Some(Guarded::Extracting(context)) => Ok(Self(context.pre_grant.lease())),
            Some(Guarded::Running(mark)) => Ok(Self(LeaseCell::from(&mark))),
            None => Err(NotGuarded::Unguarded),
        })
    }
}

/// The transaction of a guarded handler. Its writes commit together with the record of the
/// handler's response, or not at all (CMP-7). [`retryproof_http::GuardedTx`] explains how the
/// transaction ends.
///
/// The extractor needs a `web::Data<JoinedEngine<T>>` in the app's data. Extracting the argument
/// opens no transaction (ANN-6).
pub struct GuardedTx<T>(retryproof_http::GuardedTx<T>);

impl<T: Send + 'static> GuardedTx<T> {
    /// Returns the transaction, which the first call opens. While a returned value is alive,
    /// further calls wait.
    ///
    /// # Errors
    /// Returns a [`TxError`], which actix can send as a response. A handler can write
    /// `tx.begin().await?` if its error type can be converted from `TxError`.
    ///
    /// # Cancel safety
    /// If the future is dropped while it opens the transaction, no transaction stays open.
    pub async fn begin(&self) -> Result<OpenTx<T>, TxError> {
        self.0.begin().await.map_err(TxError)
    }
}

impl<T> Clone for GuardedTx<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for GuardedTx<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Send + 'static> FromRequest for GuardedTx<T> {
    type Error = NotGuarded;
    type Future = Ready<Result<Self, NotGuarded>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let tx = || {
            let guarded = Guarded::of(request).ok_or(NotGuarded::Unguarded)?;
            let joined =
                request.app_data::<Data<JoinedEngine<T>>>().ok_or(NotGuarded::NoJoinedEngine)?;
            let tx = match guarded {
                Guarded::Extracting(context) => {
                    context.pre_grant.guarded_tx(|| joined.get_ref().clone())
                }
                Guarded::Running(mark) => mark.tx(joined),
            };
            tx.map(Self).ok_or(NotGuarded::AnotherTx)
        };
        ready(tx())
    }
}

/// Why [`GuardedTx::begin`] returned no transaction. If the database cannot open a transaction, the
/// response is a 503, which is not stored, and the key becomes free.
#[derive(Debug)]
pub struct TxError(pub retryproof_http::TxError);

impl fmt::Display for TxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for TxError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl ResponseError for TxError {
    fn status_code(&self) -> StatusCode {
        match self.0 {
            retryproof_http::TxError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn error_response(&self) -> HttpResponse {
        let response = transaction_error_response(&self.0);
        let no_tx = response.extensions().get::<NoTx>().copied();
        let mut response = of_filter(response.map(Into::into)).with_fate(self.0.fate());
        if let Some(no_tx) = no_tx {
            response.extensions_mut().insert(no_tx);
        }
        response
    }
}
