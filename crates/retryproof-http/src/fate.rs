// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of an answer: stored, released, held or streamed (HTTP-7).
//!
//! An error type that a handler returns is turned into a response before the guard sees it, so the
//! response has to carry the word. It does so by an extension, [`AnswerFate`]; nothing turns any
//! error into `Release` by itself.

use http::{Extensions, Response};
use retryproof_core::Recorded;

/// What becomes of an answer that the handler returned. A response extension; in axum also a part
/// of any response tuple: `(StatusCode::BAD_GATEWAY, AnswerFate::Hold, "timed out")`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AnswerFate {
    /// Stored and replayed to every duplicate for the ttl, whatever its status. What happens to an
    /// unmarked answer.
    #[default]
    Store,
    /// **Surely nothing happened.** The answer is sent, not stored, and the key is free again: the
    /// next request runs.
    Release,
    /// **Nobody knows what happened**, say after a time-out of a payment provider. The answer is
    /// sent, not stored, and the key stays taken until the lease runs out; the next run knows that
    /// it is a takeover.
    Hold,
    /// **Done, and to be sent as it comes.** Before its first byte leaves, the key is recorded as
    /// done and not replayable; then the body streams to the client, and is dropped with the
    /// connection. A duplicate is refused, 409 `result-not-replayable`. For endless or slow bodies:
    /// NDJSON, an export. Do the work first, then answer.
    Stream,
}

/// States the fate of an error (or any answer), by the type that knows it.
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
/// Its `IntoResponse` then puts `self.fate()` into the response tuple. There is no default and no
/// blanket implementation on purpose: freeing the key of a charge that may have happened is a
/// decision.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what becomes of its answer",
    label = "it wants to be a `Fate`",
    note = "implement `Fate` for it: `Store`, `Release` or `Hold`, for each of its values"
)]
pub trait Fate {
    /// What becomes of the answer that is made of `self`.
    fn fate(&self) -> AnswerFate;
}

impl AnswerFate {
    /// Marks a response.
    pub fn mark<B>(self, mut response: Response<B>) -> Response<B> {
        response.extensions_mut().insert(self);
        response
    }

    /// Takes the mark off a response: it belongs to the call whose handler set it, and an outer
    /// call that hands the response on must not read it as its own (HTTP-7). What was recorded of
    /// an inner call is not said of the outer one either (CMP-4).
    pub(crate) fn take(extensions: &mut Extensions) -> Option<Self> {
        extensions.remove::<Recorded>();
        extensions.remove()
    }
}

/// A response extension of gRPC: the response is an error although its HTTP status is 200, so the
/// writes of its transaction are rolled back (CMP-7).
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
