// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a caller can read from an answer and set on a request.

use reqwest::Response;
use reqwest_middleware::RequestBuilder;

use crate::key::IdempotencyKey;

/// How a call got its answer. The middleware adds this report as an extension to every answer that
/// it handles.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CallReport {
    /// How many times the request was sent.
    pub attempts: u32,
    /// Whether this is the stored answer of an earlier attempt or call, marked
    /// `Idempotent-Replayed: true` (HTTP-8).
    pub replayed: bool,
    /// Why no further attempt follows although the answer is retryable. `None` for a final answer.
    pub gave_up: Option<GaveUp>,
    /// The `code` of the answer's problem, if it has one (HTTP-11).
    pub code: Option<String>,
    /// The call's key. `None` if the call has no key, or if the caller set the header itself.
    pub key: Option<IdempotencyKey>,
}

/// The limit that ended a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GaveUp {
    /// The number of attempts.
    Attempts,
    /// The deadline: the next attempt would have begun too late.
    Deadline,
    /// The request could be sent only once.
    SentOnce,
}

/// Reads from an answer how its call went.
pub trait IdempotentResponse {
    /// Whether this is the stored answer of an earlier attempt or call. If so, that attempt or call
    /// did the work.
    fn is_replay(&self) -> bool;

    /// Returns the report on the call. `None` if the answer did not come through the middleware, or
    /// if its request was sent [without a key](IdempotentRequest::without_key).
    fn call(&self) -> Option<&CallReport>;
}

impl IdempotentResponse for Response {
    fn is_replay(&self) -> bool {
        is_replay(self.headers())
    }

    fn call(&self) -> Option<&CallReport> {
        self.extensions().get()
    }
}

pub(crate) fn is_replay(headers: &http::HeaderMap) -> bool {
    headers.get("idempotent-replayed").is_some_and(|value| value == "true")
}

/// Settings for a call, set on its request.
pub trait IdempotentRequest: Sized {
    /// Sets the key of this call, for example an order number. Inside a guarded action, use
    /// `lease.downstream_key("charge")`, which stays the same after a takeover. If the key is
    /// invalid, the call fails before anything is sent.
    #[must_use]
    fn idempotency_key(self, key: impl AsRef<str>) -> Self;

    /// Sends the request unchanged, without a key and without retries. Use this for a service that
    /// does not support keys.
    #[must_use]
    fn without_key(self) -> Self;

    /// Sends the request with its key, but only once. Use this for a body that is a stream.
    #[must_use]
    fn send_once(self) -> Self;
}

/// The extension that [`IdempotentRequest::without_key`] adds. If you build a request without a
/// request builder, add the extension yourself.
#[derive(Debug, Clone, Copy)]
pub struct WithoutKey;

/// The extension that [`IdempotentRequest::send_once`] adds. If you build a request without a
/// request builder, add the extension yourself.
#[derive(Debug, Clone, Copy)]
pub struct SendOnce;

impl IdempotentRequest for RequestBuilder {
    fn idempotency_key(self, key: impl AsRef<str>) -> Self {
        match IdempotencyKey::new(key.as_ref()) {
            Ok(key) => self.with_extension(key),
            Err(why) => self.with_extension(why),
        }
    }

    fn without_key(self) -> Self {
        self.with_extension(WithoutKey)
    }

    fn send_once(self) -> Self {
        self.with_extension(SendOnce)
    }
}
