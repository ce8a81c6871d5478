// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fate of a response: stored, released, held or streamed (HTTP-7).
//!
//! A handler's error reaches the guard only as a response, so the response carries the fate in an
//! extension, [`AnswerFate`]. No error type except [`TxError`](crate::TxError) becomes `Release`
//! automatically.

use http::{Extensions, Response};
use retryproof_core::Recorded;

/// The fate of a response that the handler returned. The fate is a response extension, and in axum
/// it can also be part of a response tuple:
/// `(StatusCode::BAD_GATEWAY, AnswerFate::Hold, "timed out")`.
/// # When to use
/// | the handler knows that | fate |
/// |---|---|
/// | the work is done, or was refused permanently | `Store`, which needs no mark |
/// | nothing happened, and a retry may succeed | `Release` |
/// | it sent a request to another system and got no answer | `Hold` |
/// | the work is done, and its response must not be buffered | `Stream` |
///
/// ```
/// use http::{Response, StatusCode};
/// use retryproof_http::AnswerFate;
///
/// fn respond(status: StatusCode, fate: AnswerFate) -> Response<&'static str> {
///     let mut response = Response::new("see the status");
///     *response.status_mut() = status;
///     fate.mark(response)
/// }
///
/// // The provider refused before it charged anything: the next request may charge.
/// let response = respond(StatusCode::SERVICE_UNAVAILABLE, AnswerFate::Release);
/// assert_eq!(response.extensions().get(), Some(&AnswerFate::Release));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AnswerFate {
    /// The response is stored, and replayed to every duplicate for the ttl, whatever its status. A
    /// response without a mark has this fate, unless the filter's hook, the policy or the
    /// configuration chooses another (HTTP-7, HTTP-19).
    #[default]
    Store,
    /// **Certainly nothing happened.** The response is sent and not stored, and the key is free
    /// again: the next request with the key runs.
    Release,
    /// **It is not known what happened**, for example after a payment provider timed out. The
    /// response is sent and not stored, and the key stays held until the lease runs out. The next
    /// run sees from its lease that it is a takeover.
    Hold,
    /// **Done, with a body to stream.** The key is recorded as "done, not replayable" before the
    /// first byte is sent. Then the body streams to the client. If the connection closes, the body
    /// is dropped. A duplicate is refused with 409 `result-not-replayable`. Use `Stream` for
    /// endless or slow bodies, such as NDJSON or an export. Do the work first, then respond.
    Stream,
}

/// States the fate of an error, or of any other value that becomes a response.
///
/// ```
/// use retryproof_http::{AnswerFate, Fate};
///
/// enum PayError { Throttled, ProviderTimeout, Declined }
///
/// impl Fate for PayError {
///     fn fate(&self) -> AnswerFate {
///         match self {
///             Self::Throttled => AnswerFate::Release,
///             Self::ProviderTimeout => AnswerFate::Hold,
///             Self::Declined => AnswerFate::Store,
///         }
///     }
/// }
/// ```
/// `PayError`'s `IntoResponse` then puts `self.fate()` into the response tuple. There is
/// deliberately no default and no blanket implementation. If a charge may have happened, freeing
/// its key must be an explicit decision.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whether its response is stored",
    label = "this type must implement `Fate`",
    note = "implement `Fate` for this type: return `Store`, `Release` or `Hold` for each of its \
            values"
)]
pub trait Fate {
    /// Returns the fate of the response that is made from `self`.
    fn fate(&self) -> AnswerFate;
}

impl AnswerFate {
    /// Marks a response.
    pub fn mark<B>(self, mut response: Response<B>) -> Response<B> {
        response.extensions_mut().insert(self);
        response
    }

    /// Removes the mark from a response, and returns it. The mark belongs to the call whose handler
    /// set it. An outer call that passes the response on must not read the mark (HTTP-7). An inner
    /// call's `Recorded` is removed for the same reason (CMP-4).
    pub(crate) fn take(extensions: &mut Extensions) -> Option<Self> {
        extensions.remove::<Recorded>();
        extensions.remove()
    }
}

/// A response extension that the gRPC layer sets on a response with an error status. The guard then
/// rolls back the transaction's writes, even though the HTTP status is 200 (CMP-7).
#[cfg(feature = "grpc")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RollBackWrites;

#[cfg(feature = "axum")]
mod into_response {
    use std::convert::Infallible;

    use axum_core::response::{IntoResponseParts, ResponseParts};

    use super::AnswerFate;

    impl IntoResponseParts for AnswerFate {
        type Error = Infallible;

        fn into_response_parts(
            self,
            mut parts: ResponseParts,
        ) -> Result<ResponseParts, Infallible> {
            parts.extensions_mut().insert(self);
            Ok(parts)
        }
    }
}
