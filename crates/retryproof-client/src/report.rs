// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the caller may ask of an answer, and say with a request.

use reqwest::Response;
use reqwest_middleware::RequestBuilder;

use crate::key::IdempotencyKey;

/// How a call came to its answer; an extension of every answer that the middleware has handled.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CallReport {
    /// How often the request was sent.
    pub attempts: u32,
    /// Whether this is the stored answer of an earlier attempt or call, marked
    /// `Idempotent-Replayed: true` (HTTP-8).
    pub replayed: bool,
    /// Why this answer, which asks for another attempt, is nevertheless the last one. None for an
    /// answer that is final.
    pub gave_up: Option<GaveUp>,
    /// The `code` of its problem (HTTP-11).
    pub code: Option<String>,
    /// The call's key. None where there is none, or the caller wrote the header itself.
    pub key: Option<IdempotencyKey>,
}

/// What ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GaveUp {
    /// The attempts.
    Attempts,
    /// The time: the next attempt would have been after the deadline.
    Deadline,
    /// Nothing: its body can be sent only once.
    SentOnce,
}

/// What an answer says about its call.
pub trait IdempotentResponse {
    /// Whether this is the stored answer of an earlier attempt or call: the work was not done now,
    /// but before.
    fn is_replay(&self) -> bool;

    /// All about the call. None for an answer that did not come through the middleware, or whose
    /// request was sent [without a key](IdempotentRequest::without_key).
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

/// What a request says about its call.
pub trait IdempotentRequest: Sized {
    /// The key of this call, chosen by the caller: an order's number, or inside of a guarded action
    /// `lease.downstream_key("charge")`, which is the same for whoever takes over from it. What
    /// cannot be a key fails the call before anything is sent.
    #[must_use]
    fn idempotency_key(self, key: impl AsRef<str>) -> Self;

    /// No key and no retry: the request is passed on as it is, for a service that does not know
    /// keys.
    #[must_use]
    fn without_key(self) -> Self;

    /// The request is sent with its key, once, whatever becomes of it: for a body that is a stream.
    #[must_use]
    fn send_once(self) -> Self;
}

/// The extension behind [`IdempotentRequest::without_key`], for requests that are made without a
/// builder.
#[derive(Debug, Clone, Copy)]
pub struct WithoutKey;

/// The extension behind [`IdempotentRequest::send_once`], for requests that are made without a
/// builder.
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
