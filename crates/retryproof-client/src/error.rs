// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a call has no answer.

use std::fmt;

use crate::key::IdempotencyKey;

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The middleware's settings contradict themselves. Nothing was sent.
    Config,
    /// The key that was given cannot be one. Nothing was sent.
    InvalidKey,
    /// No key was given, and [`given_keys_only`](crate::Builder::given_keys_only) is on. Nothing
    /// was sent.
    KeyMissing,
    /// The body is a stream, which cannot be sent twice. Nothing was sent.
    BodyNotReplayable,
    /// The operating system had no random bits for a key. Nothing was sent.
    NoRandom,
    /// Attempts or time ran out, and the last attempt had no answer. **It may have been carried
    /// out**: call again with the [`key`](CallError::key), then and only then is it sure.
    GaveUp,
}

impl ErrorKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Config => "invalid configuration",
            Self::InvalidKey => "invalid idempotency key",
            Self::KeyMissing => "no idempotency key was given for a call that needs one",
            Self::BodyNotReplayable => "the body is a stream and cannot be sent twice",
            Self::NoRandom => "no idempotency key could be drawn",
            Self::GaveUp => "no answer",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A call that got no answer. It never shows a key, a body or a URL; its source may name the URL,
/// which reqwest keeps free of passwords.
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

    /// The one inside of what a call through reqwest-middleware failed with, if it is ours.
    #[must_use]
    pub fn of(error: &reqwest_middleware::Error) -> Option<&Self> {
        match error {
            reqwest_middleware::Error::Middleware(error) => error.downcast_ref(),
            reqwest_middleware::Error::Reqwest(_) => None,
        }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What the last attempt failed with, as reqwest said it. None where it timed out by the
    /// middleware's own clock, or nothing was sent.
    #[must_use]
    pub fn transport(&self) -> Option<&reqwest::Error> {
        match self.source.as_deref()?.downcast_ref()? {
            reqwest_middleware::Error::Reqwest(error) => Some(error),
            reqwest_middleware::Error::Middleware(_) => None,
        }
    }

    /// How often the request was sent, or tried to.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The call's key, by which it can be taken up again, now or after a restart. None where there
    /// is none, or the caller wrote the header itself.
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
