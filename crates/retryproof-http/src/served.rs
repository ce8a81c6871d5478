// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Served`] shows layers outside the guard how the guard served a request (HTTP-18).

use http::Extensions;
use retryproof_core::observe::ShadowVerdict;

use crate::protocol::problem::Code;

/// How the guard served a request. Every response that leaves the guard has this extension, in
/// axum, in any tower stack, over gRPC and in actix-web (HTTP-18).
///
/// A layer outside the guard can count responses by this value. [`as_str`](Self::as_str) returns
/// the call's `outcome` as it appears in the log (RUN-7) and in the [observer's
/// events](retryproof_core::Observer). A request that ends before the engine is called, for example
/// because its key is missing, causes no event. Only this extension shows how such a request ended.
///
/// | value | `as_str` | the response |
/// |---|---|---|
/// | [`Executed`](Self::Executed) | `executed` | is the handler's, or a 500 in its place; the extension [`Recorded`](retryproof_core::Recorded) shows whether the record has the response |
/// | [`Unconfirmed`](Self::Unconfirmed) | `unconfirmed` | is the handler's, or a 500 in its place; a retry may run the handler again |
/// | [`Released`](Self::Released) | `released` | is the handler's, or a rejection or problem in its place; the key is free |
/// | [`Failed`](Self::Failed) | `failed` | is the handler's, or a 500 or 503 in its place; the response is [held](crate::Hold), or the writes were rolled back |
/// | [`Lost`](Self::Lost) | `lost` | is what a duplicate gets, usually the response of the run that took over the key while this handler ran |
/// | [`Replayed`](Self::Replayed) | `replayed` | is the stored one |
/// | [`Mismatch`](Self::Mismatch) | `mismatch` | is the problem `fingerprint-mismatch` |
/// | [`NotReplayable`](Self::NotReplayable) | `not_replayable` | is the problem `result-not-replayable` |
/// | [`InFlight`](Self::InFlight) | `in_flight` | is the problem `in-flight` |
/// | [`Refused`](Self::Refused) | `refused` | is the problem with this code |
/// | [`Unguarded`](Self::Unguarded) | `unguarded` | belongs to an unguarded request: its method or route is not guarded, its scope is switched off (`enabled = false`), it has no key and keys are optional, or an extractor rejected it before the key was looked up |
/// | [`Shadow`](Self::Shadow) | `shadow` | is the handler's, because the scope is in shadow mode; the verdict says what the guard would have done |
///
/// `Unconfirmed` is the only value whose name is not an outcome in the log. `Unconfirmed` means
/// that the store did not confirm the completion in time (CMP-4), or did not report whether a
/// joined transaction was committed (CMP-7). The log line and the observers' event come later, when
/// the outcome is decided. They show `executed`, `failed` or `lost`.
///
/// A streamed response is `Executed`, with `Recorded::Tombstone`. If an outer guard does not handle
/// the request, the response keeps the inner guard's value. If the handler panics or the service
/// fails, there is no response, and therefore no `Served`.
///
/// ```
/// use http::Response;
/// use retryproof_http::{Code, Served};
///
/// fn label<B>(response: &Response<B>) -> (&'static str, Option<&'static str>) {
///     match response.extensions().get::<Served>() {
///         Some(Served::Refused(code)) => ("refused", Some(code.as_str())),
///         Some(served) => (served.as_str(), None),
///         None => ("no guard", None),
///     }
/// }
///
/// let mut response = Response::new(());
/// assert_eq!(label(&response), ("no guard", None));
/// response.extensions_mut().insert(Served::Refused(Code::KeyMissing));
/// assert_eq!(label(&response), ("refused", Some("key-missing")));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Served {
    /// The handler ran, and its work counts as done.
    Executed,
    /// The handler ran, but the store did not confirm that its work is recorded (CMP-4, CMP-7).
    Unconfirmed,
    /// The response is not stored and the key is free again. The response was marked
    /// [`Release`](crate::Release), a hook or a setting released its status, or the handler could
    /// not start its work.
    Released,
    /// The handler ran, and its work is not recorded.
    Failed,
    /// The handler ran, but another run had taken over. The client gets the response that a
    /// duplicate would get, usually the other run's response.
    Lost,
    /// The stored response.
    Replayed,
    /// The key was used with a different request.
    Mismatch,
    /// The work is done, but its response was not kept.
    NotReplayable,
    /// Another request holds this key.
    InFlight,
    /// Nothing ran, for the reason that the code names. If the caller hook sent its own response,
    /// the code is [`CallerMissing`](Code::CallerMissing).
    Refused(Code),
    /// The guard did not handle the request, or its scope is switched off (CTX-5).
    Unguarded,
    /// The handler ran, because its scope is in shadow mode. The verdict says what the guard would
    /// have done (CTX-6).
    Shadow(ShadowVerdict),
}

impl Served {
    /// Returns the name for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Unconfirmed => "unconfirmed",
            Self::Released => "released",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Replayed => "replayed",
            Self::Mismatch => "mismatch",
            Self::NotReplayable => "not_replayable",
            Self::InFlight => "in_flight",
            Self::Refused(_) => "refused",
            Self::Unguarded => "unguarded",
            Self::Shadow(_) => "shadow",
        }
    }

    /// Returns the value for a request that was refused with this code.
    pub(crate) fn of_problem(code: Code) -> Self {
        match code {
            Code::FingerprintMismatch => Self::Mismatch,
            Code::ResultNotReplayable => Self::NotReplayable,
            Code::InFlight => Self::InFlight,
            code => Self::Refused(code),
        }
    }

    /// Marks the response to a request that this guard did not handle, unless an inner guard has
    /// already marked the response.
    pub(crate) fn mark_unguarded(extensions: &mut Extensions) {
        extensions.get_or_insert(Self::Unguarded);
    }
}
