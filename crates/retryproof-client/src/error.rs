// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of a call that got no answer.

use std::fmt;

use crate::key::IdempotencyKey;

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting of the middleware is invalid or contradicts another setting. Nothing was sent.
    Config,
    /// The given key is not a valid key. Nothing was sent.
    InvalidKey,
    /// No key was given, and [`given_keys_only`](crate::Builder::given_keys_only) is on. Nothing
    /// was sent.
    KeyMissing,
    /// The body is a stream, which cannot be sent twice. Nothing was sent.
    BodyNotReplayable,
    /// The operating system provided no random bits for a key. Nothing was sent.
    NoRandom,
    /// The call ended without an answer: attempts or time ran out, the request could be sent only
    /// once, or another attempt would fail too. **The request may have been carried out.** To find
    /// out, call again with the same [`key`](CallError::key).
    GaveUp,
}

impl ErrorKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Config => "invalid configuration",
            Self::InvalidKey => "invalid idempotency key",
            Self::KeyMissing => "the request was not sent, because it has no idempotency key",
            Self::BodyNotReplayable => {
                "the request was not sent, because its body is a stream, which a retry could not \
                 send again"
            }
            Self::NoRandom => "no idempotency key could be generated",
            Self::GaveUp => "the call got no answer",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A call that got no answer. The message never shows a key, a body or a URL. The source can show
/// the URL, without its user and password.
#[derive(Debug)]
pub struct CallError {
    kind: ErrorKind,
    detail: String,
    attempts: u32,
    key: Option<IdempotencyKey>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl CallError {
    pub(crate) fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), attempts: 0, key: None, source: None }
    }

    pub(crate) fn because(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn after(mut self, attempts: u32, key: Option<IdempotencyKey>) -> Self {
        (self.attempts, self.key) = (attempts, key);
        self
    }

    /// Returns the `CallError` inside a reqwest-middleware error, if there is one.
    #[must_use]
    pub fn of(error: &reqwest_middleware::Error) -> Option<&Self> {
        match error {
            reqwest_middleware::Error::Middleware(error) => error.downcast_ref(),
            reqwest_middleware::Error::Reqwest(_) => None,
        }
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the reqwest error of the last attempt. `None` if the middleware's timeout or another
    /// middleware ended that attempt, or if nothing was sent.
    #[must_use]
    pub fn transport(&self) -> Option<&reqwest::Error> {
        match self.source.as_deref()?.downcast_ref()? {
            reqwest_middleware::Error::Reqwest(error) => Some(error),
            reqwest_middleware::Error::Middleware(_) => None,
        }
    }

    /// Returns how many times the middleware tried to send the request.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns the call's key. Repeat the call with this key, now or after a restart. `None` if the
    /// call has no key, or if the caller set the header itself.
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.key.as_ref()
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if self.attempts > 0 {
            write!(f, " in {} attempts", self.attempts)?;
        }
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
