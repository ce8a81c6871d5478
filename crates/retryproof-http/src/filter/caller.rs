// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caller of a request: how a filter tells callers apart, and what a caller hook returns
//! (HTTP-16).

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response};
use retryproof_core::{Error, ErrorKind};

/// A caller hook, synchronous or asynchronous.
pub(crate) type CallerHook = dyn Fn(&Parts) -> CallerFuture + Send + Sync;

/// What a caller hook returned: a caller, or a future that resolves to a caller.
pub enum CallerFuture {
    /// The result of a synchronous hook.
    Now(Caller),
    /// The future of an asynchronous hook.
    Later(Pin<Box<dyn Future<Output = Caller> + Send>>),
}

impl fmt::Debug for CallerFuture {
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
    /// The filter does not tell callers apart.
    ShareKeys,
    Hook(Arc<CallerHook>, Absent),
}

/// What happens to a request for which the hook finds no caller.
#[derive(Clone)]
pub(crate) enum Absent {
    /// The request is refused: with 401 and this challenge, or with 403 if there is no challenge.
    Refused(Option<HeaderValue>),
    /// All requests without a caller count as one caller.
    Shares,
}

impl Callers {
    pub(crate) fn hook(&self) -> Option<&CallerHook> {
        match self {
            Self::ShareKeys => None,
            Self::Hook(hook, _) => Some(&**hook),
        }
    }

    /// Returns the challenge to send when a request without a caller is refused.
    pub(crate) fn challenge(&self) -> Option<&str> {
        match self {
            Self::Hook(_, Absent::Refused(Some(challenge))) => challenge.to_str().ok(),
            Self::Hook(..) | Self::ShareKeys => None,
        }
    }
}

/// The caller that a key belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallerIdentity {
    /// Callers share keys.
    Anyone,
    /// The hook found no caller, and absent callers share keys.
    Absent,
    Named(String),
}

impl CallerIdentity {
    /// Returns the data subject of the response: the subject that the subject hook found, otherwise
    /// the caller (SEAL-3). An `Err` is the response with which the hook refuses the request.
    pub(crate) fn subject(
        &self,
        found: Option<CallerFuture>,
    ) -> Result<Option<Cow<'_, str>>, Box<Response<Bytes>>> {
        match found {
            Some(CallerFuture::Now(Caller::Named(subject))) => return Ok(Some(subject.into())),
            Some(CallerFuture::Now(Caller::Refused(response))) => return Err(response),
            // The builder accepts no asynchronous subject hook.
            None | Some(CallerFuture::Now(Caller::Absent) | CallerFuture::Later(_)) => {}
        }
        Ok(match self {
            Self::Named(caller) => Some(caller.into()),
            Self::Anyone | Self::Absent => None,
        })
    }
}

/// The state of a [`FilterBuilder`](crate::FilterBuilder) without a caller setting. A filter cannot
/// be built in this state.
#[derive(Debug)]
pub struct NoCaller(pub(crate) ());

/// The state of a [`FilterBuilder`](crate::FilterBuilder) whose callers share keys.
#[derive(Debug)]
pub struct CallersShareKeys(pub(crate) ());

/// The state of a [`FilterBuilder`](crate::FilterBuilder) with a hook that tells callers apart.
pub struct CallerSet {
    hook: Arc<CallerHook>,
    absent_share: bool,
    challenge: Option<String>,
}

impl CallerSet {
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

impl fmt::Debug for CallerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hook: _, absent_share, challenge } = self;
        f.debug_struct("CallerSet")
            .field("absent_share", absent_share)
            .field("challenge", challenge)
            .finish_non_exhaustive()
    }
}

/// The state of a [`FilterBuilder`](crate::FilterBuilder) that can be built: its hook tells callers
/// apart, or callers share keys. This trait is sealed.
#[diagnostic::on_unimplemented(
    message = "the filter cannot be built until you configure how it tells callers apart",
    label = "call `.caller(hook)` or `.callers_share_keys()` first",
    note = "two callers that choose the same key must not see each other's responses: \
            `.caller(hook)` adds the caller's name to every key; call `.callers_share_keys()` only \
            if the application ensures that different callers never use the same key"
)]
pub trait CallerConfigured: sealed::Sealed {
    #[doc(hidden)]
    fn into_callers(self) -> Result<sealed::Configured, Error>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for super::CallerSet {}
    impl Sealed for super::CallersShareKeys {}
    #[expect(missing_debug_implementations, reason = "not visible outside the builder")]
    pub struct Configured(pub(crate) super::Callers);
}

impl CallerConfigured for CallersShareKeys {
    fn into_callers(self) -> Result<sealed::Configured, Error> {
        Ok(sealed::Configured(Callers::ShareKeys))
    }
}

impl CallerConfigured for CallerSet {
    fn into_callers(self) -> Result<sealed::Configured, Error> {
        let Self { hook, absent_share, challenge } = self;
        let absent = match (absent_share, challenge) {
            (true, None) => Absent::Shares,
            (false, None) => Absent::Refused(None),
            (false, Some(challenge)) => {
                let value =
                    HeaderValue::from_str(&challenge).ok().filter(|value| value.to_str().is_ok());
                Absent::Refused(Some(value.ok_or_else(|| {
                    Error::new(
                        ErrorKind::Config,
                        "the challenge for requests without a caller is not a valid header value",
                    )
                    .with("challenge", &challenge)
                })?))
            }
            (true, Some(_)) => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "`absent_callers_share` is set, so the challenge would never be sent; remove \
                     one of the two settings",
                ));
            }
        };
        Ok(sealed::Configured(Callers::Hook(hook, absent)))
    }
}

/// What a caller hook returns (HTTP-16).
/// # When to use
/// A hook that does not always find a caller can return an `Option<String>`. A hook that sometimes
/// refuses the request can return a `Result`: see [`IntoCaller`]. Return a `Caller` if one function
/// has all three outcomes:
///
/// ```
/// use http::{Response, request::Parts};
/// use retryproof_http::Caller;
///
/// fn caller(request: &Parts) -> Caller {
///     match request.headers.get("x-tenant").map(|tenant| tenant.to_str()) {
///         None => Caller::Absent,
///         Some(Ok(tenant)) => Caller::Named(tenant.to_owned()),
///         Some(Err(_)) => Caller::refuse(Response::builder().status(400).body("").unwrap()),
///     }
/// }
/// # let (request, ()) = http::Request::builder().header("x-tenant", "a").body(()).unwrap().into_parts();
/// # assert!(matches!(caller(&request), Caller::Named(_)));
/// ```
#[derive(Clone)]
#[must_use]
pub enum Caller {
    /// The hook found no caller. The request is refused, unless [absent callers share
    /// keys](crate::FilterBuilder::absent_callers_share).
    Absent,
    /// The principal or tenant; any text is allowed. The text is hashed if it is over 240 bytes
    /// long or has control characters.
    Named(String),
    /// The hook refuses the request with this response: nothing runs and nothing is stored.
    Refused(Box<Response<Bytes>>),
}

/// Does not print the caller, because its name can identify a person, such as the data subject of a
/// sealed result (SEAL-3).
impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("Absent"),
            Self::Named(_) => f.write_str("Named(hidden)"),
            Self::Refused(response) => f.debug_tuple("Refused").field(&response.status()).finish(),
        }
    }
}

impl Caller {
    /// Refuses the request with this response.
    pub fn refuse<B: Into<Bytes>>(response: Response<B>) -> Self {
        Self::Refused(Box::new(response.map(Into::into)))
    }
}

/// What a caller hook can return: a [`Caller`], a `String`, an `Option<String>`, or a `Result` of
/// one of these. The error of the `Result` is the response that refuses the request.
#[diagnostic::on_unimplemented(
    message = "a caller hook cannot return `{Self}`",
    label = "a caller hook returns a `String`, an `Option<String>`, a `Caller`, or a `Result` with \
             one of these as `Ok` and a response as `Err`",
    note = "to refuse a request, return `Err(response)`; if the hook is async, pass it to \
            `.caller_async(hook)`"
)]
pub trait IntoCaller {
    /// Converts the value to a [`Caller`].
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
