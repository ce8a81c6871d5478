// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`WithFate`]: marks an actix response with its fate (HTTP-7).

use actix_web::HttpResponse;
use retryproof_http::AnswerFate;

/// Marks a response with its fate.
///
/// An error type can mark its own response, in `error_response`:
///
/// ```
/// use actix_web::{HttpResponse, ResponseError, http::StatusCode};
/// use retryproof_actix::WithFate;
/// use retryproof_http::{AnswerFate, Fate};
///
/// #[derive(Debug)]
/// enum PayError { Throttled, ProviderTimeout }
///
/// impl Fate for PayError {
///     fn fate(&self) -> AnswerFate {
///         match self {
///             Self::Throttled => AnswerFate::Release,    // certainly nothing happened
///             Self::ProviderTimeout => AnswerFate::Hold, // it may have charged
///         }
///     }
/// }
///
/// impl std::fmt::Display for PayError {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         f.write_str("not paid")
///     }
/// }
///
/// impl ResponseError for PayError {
///     fn status_code(&self) -> StatusCode { StatusCode::SERVICE_UNAVAILABLE }
///     fn error_response(&self) -> HttpResponse {
///         HttpResponse::build(self.status_code()).body(self.to_string()).with_fate(self.fate())
///     }
/// }
/// ```
/// If a handler returns an `Err` and its response has no mark, the guard stores the response like
/// any other. No error type except [`TxError`](crate::TxError) becomes
/// [`Release`](AnswerFate::Release) automatically.
pub trait WithFate {
    /// Returns the response, marked with this fate.
    #[must_use]
    fn with_fate(self, fate: AnswerFate) -> Self;
}

impl<B> WithFate for HttpResponse<B> {
    fn with_fate(mut self, fate: AnswerFate) -> Self {
        self.extensions_mut().insert(fate);
        self
    }
}
