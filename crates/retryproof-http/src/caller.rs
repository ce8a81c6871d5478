// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who the caller of a request is: what the builder of a filter was told about it, and what a hook
//! answers (HTTP-16).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response};
use retryproof_core::{Error, ErrorKind};

/// A caller hook of either form.
pub(crate) type CallerHook = dyn Fn(&Parts) -> Answering + Send + Sync;

/// The answer of a caller hook, at hand or to be awaited.
pub enum Answering {
    /// At hand.
    Now(Caller),
    /// Of a hook that is asynchronous.
    Later(Pin<Box<dyn Future<Output = Caller> + Send>>),
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(caller) => f.debug_tuple("Now").field(caller).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

/// How a filter tells callers apart.
#[derive(Clone)]
pub(crate) enum Callers {
    /// Not at all.
    ShareKeys,
    Hook(Arc<CallerHook>, Absent),
}

/// What becomes of a request whose hook finds no caller.
#[derive(Clone)]
pub(crate) enum Absent {
    /// It is refused: 401 with this challenge, or 403 without one.
    Refused(Option<HeaderValue>),
    /// All such requests are one caller.
    Shares,
}

impl Callers {
    pub(crate) fn hook(&self) -> Option<&CallerHook> {
        match self {
            Self::ShareKeys => None,
            Self::Hook(hook, _) => Some(&**hook),
        }
    }

    /// The challenge of a refusal.
    pub(crate) fn challenge(&self) -> Option<&str> {
        match self {
            Self::Hook(_, Absent::Refused(Some(challenge))) => challenge.to_str().ok(),
            Self::Hook(..) | Self::ShareKeys => None,
        }
    }
}

/// Whose key it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum By {
    /// Callers share keys.
    Anyone,
    /// The hook found no caller, and absent callers share.
    Absent,
    Named(String),
}

/// The builder has no word yet on who the caller is.
#[derive(Debug)]
pub struct CallersUnsaid(pub(crate) ());

/// The builder was told that callers share keys.
#[derive(Debug)]
pub struct CallersShareKeys(pub(crate) ());

/// The builder has a hook that tells callers apart.
pub struct CallersSaid {
    hook: Arc<CallerHook>,
    absent_share: bool,
    challenge: Option<String>,
}

impl CallersSaid {
    pub(crate) fn new(hook: Arc<CallerHook>) -> Self {
        Self { hook, absent_share: false, challenge: None }
    }

    pub(crate) fn absent_share(&mut self) {
        self.absent_share = true;
    }

    pub(crate) fn challenge(&mut self, challenge: String) {
        self.challenge = Some(challenge);
    }
}

impl fmt::Debug for CallersSaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hook: _, absent_share, challenge } = self;
        f.debug_struct("CallersSaid")
            .field("absent_share", absent_share)
            .field("challenge", challenge)
            .finish_non_exhaustive()
    }
}

/// Whether a [`FilterBuilder`](crate::FilterBuilder) has a word on who the caller is. Sealed.
#[diagnostic::on_unimplemented(
    message = "a filter is not built without a word on who the caller is",
    label = "say `.caller(hook)` or `.callers_share_keys()` first",
    note = "two callers that choose the same key must not see each other's answers: \
         `.caller(hook)` folds the principal or tenant into every key; `.callers_share_keys()` \
         says that the application sees to it"
)]
pub trait SaysWhoCalls: sealed::Sealed {
    #[doc(hidden)]
    fn said(self) -> Result<sealed::Said, Error>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for super::CallersSaid {}
    impl Sealed for super::CallersShareKeys {}
    #[expect(missing_debug_implementations, reason = "never seen outside of the builder")]
    pub struct Said(pub(crate) super::Callers);
}

impl SaysWhoCalls for CallersShareKeys {
    fn said(self) -> Result<sealed::Said, Error> {
        Ok(sealed::Said(Callers::ShareKeys))
    }
}

impl SaysWhoCalls for CallersSaid {
    fn said(self) -> Result<sealed::Said, Error> {
        let Self { hook, absent_share, challenge } = self;
        let absent = match (absent_share, challenge) {
            (true, None) => Absent::Shares,
            (false, None) => Absent::Refused(None),
            (false, Some(challenge)) => {
                let value =
                    HeaderValue::from_str(&challenge).ok().filter(|value| value.to_str().is_ok());
                Absent::Refused(Some(value.ok_or_else(|| {
                    Error::new(ErrorKind::Config, "the challenge is not the value of a header")
                        .with("challenge", &challenge)
                })?))
            }
            (true, Some(_)) => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "absent callers share, so none of them is sent a challenge; say one of the two",
                ));
            }
        };
        Ok(sealed::Said(Callers::Hook(hook, absent)))
    }
}

/// What a caller hook says (HTTP-16).
#[derive(Debug, Clone)]
#[must_use]
pub enum Caller {
    /// The hook found no caller. The request is refused, unless
    /// [absent callers share](crate::FilterBuilder::absent_callers_share).
    Absent,
    /// The principal or tenant. Any text; over 240 bytes, or with control characters, it is hashed.
    Named(String),
    /// The hook refuses the request with this response: nothing runs and nothing is stored.
    Refused(Box<Response<Bytes>>),
}

impl Caller {
    /// Refuses the request.
    pub fn refuse<B: Into<Bytes>>(response: Response<B>) -> Self {
        Self::Refused(Box::new(response.map(Into::into)))
    }
}

/// What a caller hook may return: a [`Caller`], a `String`, an `Option<String>`, or a `Result` of
/// these whose error is the response to refuse with.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say who the caller is",
    label = "a caller hook returns a `String`, an `Option<String>`, a `Caller`, or a `Result` of \
         one of these and a response",
    note = "the response of a `Result` refuses the request; a hook that has to wait goes into \
         `.caller_async(hook)`"
)]
pub trait IntoCaller {
    /// Converts.
    fn into_caller(self) -> Caller;
}

impl IntoCaller for Caller {
    fn into_caller(self) -> Caller {
        self
    }
}

impl IntoCaller for String {
    fn into_caller(self) -> Caller {
        Caller::Named(self)
    }
}

impl IntoCaller for Option<String> {
    fn into_caller(self) -> Caller {
        self.map_or(Caller::Absent, Caller::Named)
    }
}

impl<C: IntoCaller, B: Into<Bytes>> IntoCaller for Result<C, Response<B>> {
    fn into_caller(self) -> Caller {
        self.map_or_else(Caller::refuse, IntoCaller::into_caller)
    }
}
