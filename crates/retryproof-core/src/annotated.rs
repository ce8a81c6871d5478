// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions for the code that `#[idempotent(key = ..)]` generates. These functions are not a
//! public API. The generated code calls them through the facade's `__private`, and they may change
//! together with the attribute.
//!
//! They are ordinary functions and not part of the generated code, so the compiler and the tests
//! check them like any other code.

use std::any::type_name;
use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;

pub use crate::config::CompletionFailurePolicy;
use crate::engine::Lease;
pub use crate::engine::{IdempotencyEngine, JoinedEngine};

#[cfg(feature = "blocking")]
pub use crate::blocking::{Engine as BlockingEngine, JoinedEngine as BlockingJoinedEngine};
use crate::codec::{Codec, JsonCodec};
use crate::context::{ContextBuilder, IdempotencyContext};
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint::Fingerprint;
use crate::identity::{MAX_SCOPE_BYTES, Scope};
use crate::outcome::{Rejected, settle};

mod scope_name;

pub use scope_name::default_scope;
use scope_name::{TOO_LONG, method_path, place};

/// One call to an annotated function: its identity and the attribute's settings.
#[derive(Debug)]
pub struct AnnotatedCall<C = JsonCodec> {
    context: Result<ContextBuilder>,
    codec: C,
    completion: Option<CompletionFailurePolicy>,
}

impl AnnotatedCall {
    /// Creates a call with the scope that the attribute names.
    pub fn new<K: Display + ?Sized>(scope: &'static str, key: &K) -> Self {
        Self::over(Ok(IdempotencyContext::builder(scope, key.to_string())))
    }

    /// Creates a call to a function whose attribute names no scope. The scope is usually `path`:
    /// the module path plus the function's name ([`default_scope`]). For a nested function, `path`
    /// would omit the enclosing function or block. The scope is then the path in the type name of
    /// `here`, a closure in the function's body (ANN-4).
    pub fn function<K: Display + ?Sized, H>(path: &'static str, key: &K, here: H) -> Self {
        let place = place(&here);
        if place == path {
            return Self::new(path, key);
        }
        // Compare the paths without `r#`, because the compiler writes type names without it.
        let bare = path.replace("r#", "");
        match bare.rsplit("::").next() {
            Some(name) if place != bare && place.ends_with(name) => {
                Self::under(place.to_owned(), key)
            }
            _ => Self::new(path, key),
        }
    }

    /// Creates a call to a method whose attribute names no scope. The scope consists of the type's
    /// full path, the method's name and, for a trait method, the trait with its parameters (ANN-4).
    /// The type name of `here`, a closure in the method's body, shows the trait.
    pub fn method<Owner: ?Sized, K: Display + ?Sized, H>(name: &str, key: &K, here: H) -> Self {
        Self::under(method_path(type_name::<Owner>(), name, place(&here)), key)
    }

    fn under<K: Display + ?Sized>(path: String, key: &K) -> Self {
        let scope = match path.len() {
            bytes if bytes > MAX_SCOPE_BYTES => {
                Err(Error::new(ErrorKind::Invalid, TOO_LONG).with("bytes", bytes))
            }
            _ => Scope::new(path),
        };
        Self::over(scope.map(|scope| IdempotencyContext::builder(scope, key.to_string())))
    }

    fn over(context: Result<ContextBuilder>) -> Self {
        Self { context, codec: JsonCodec, completion: None }
    }
}

impl<C> AnnotatedCall<C> {
    /// Like [`ContextBuilder::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|context| context.ttl(ttl))
    }

    /// Like [`ContextBuilder::lease`].
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|context| context.lease(lease))
    }

    /// Like [`ContextBuilder::wait_timeout`].
    #[must_use]
    pub fn wait_timeout(self, wait: Duration) -> Self {
        self.with(|context| context.wait_timeout(wait))
    }

    /// Like [`ContextBuilder::fingerprint`], but computes the fingerprint from `value` (FP-4).
    #[must_use]
    pub fn fingerprint<F: Serialize + ?Sized>(self, value: &F) -> Self {
        let context =
            self.context.and_then(|context| Ok(context.fingerprint(Fingerprint::of(value)?)));
        Self { context, ..self }
    }

    /// Like [`ContextBuilder::subject`], but takes any value with a text form (SEAL-3).
    #[must_use]
    pub fn subject<S: Display + ?Sized>(self, subject: &S) -> Self {
        self.with(|context| context.subject(subject.to_string()))
    }

    fn with(self, change: impl FnOnce(ContextBuilder) -> ContextBuilder) -> Self {
        Self { context: self.context.map(change), ..self }
    }

    /// Like [`Call::codec`](crate::Call::codec).
    pub fn codec<D>(self, codec: D) -> AnnotatedCall<D> {
        AnnotatedCall { context: self.context, codec, completion: self.completion }
    }

    /// Like [`Call::completion`](crate::Call::completion).
    #[must_use]
    pub fn completion(mut self, policy: CompletionFailurePolicy) -> Self {
        self.completion = Some(policy);
        self
    }

    /// Runs the body of an async function, or returns the stored result. After an error for which
    /// `hold` returns true, the key stays held until the lease runs out (RUN-4).
    pub async fn run<R, W, F, Fut>(self, engine: IdempotencyEngine, hold: W, body: F) -> R
    where
        R: AnnotatedResult,
        C: Codec<R::Value>,
        W: FnOnce(&R::Error) -> bool,
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = R>,
    {
        let ctx = match self.context.and_then(ContextBuilder::build) {
            Ok(ctx) => ctx,
            Err(error) => return R::from_result(Err(Rejected::Store(error).into())),
        };
        let mut call = engine.call(ctx).codec(self.codec);
        if let Some(policy) = self.completion {
            call = call.completion(policy);
        }
        let action = |lease: Lease| async move { ended(&lease, body(lease.clone()).await, hold) };
        R::from_result(settle(call.execute_with(action).await))
    }

    /// Like [`run`](Self::run), but runs the body in a transaction that also writes the record
    /// (CMP-7).
    pub async fn run_joined<R, T, W, F>(self, engine: JoinedEngine<T>, hold: W, body: F) -> R
    where
        R: AnnotatedResult,
        T: Send + 'static,
        C: Codec<R::Value>,
        W: FnOnce(&R::Error) -> bool,
        F: AsyncFnOnce(Lease, &mut T) -> R,
    {
        let ctx = match self.context.and_then(ContextBuilder::build) {
            Ok(ctx) => ctx,
            Err(error) => return R::from_result(Err(Rejected::Store(error).into())),
        };
        let call = engine.call(ctx).codec(self.codec);
        let action = async move |lease: Lease, tx: &mut T| {
            let answer = body(lease.clone(), tx).await;
            ended(&lease, answer, hold)
        };
        R::from_result(settle(call.execute_with(action).await))
    }

    /// Like [`run_joined`](Self::run_joined), but for a blocking function.
    #[cfg(feature = "blocking")]
    pub fn run_blocking_joined<R, T, W, F>(
        self,
        engine: BlockingJoinedEngine<T>,
        hold: W,
        body: F,
    ) -> R
    where
        R: AnnotatedResult,
        T: Send + 'static,
        C: Codec<R::Value>,
        W: FnOnce(&R::Error) -> bool,
        F: FnOnce(Lease, &mut T) -> R,
    {
        let ctx = match self.context.and_then(ContextBuilder::build) {
            Ok(ctx) => ctx,
            Err(error) => return R::from_result(Err(Rejected::Store(error).into())),
        };
        let call = engine.call(ctx).codec(self.codec);
        let action = |lease: Lease, tx: &mut T| ended(&lease, body(lease.clone(), tx), hold);
        R::from_result(settle(call.execute_with(action)))
    }

    /// Like [`run`](Self::run), but for a blocking function.
    #[cfg(feature = "blocking")]
    pub fn run_blocking<R, W, F>(self, engine: BlockingEngine, hold: W, body: F) -> R
    where
        R: AnnotatedResult,
        C: Codec<R::Value>,
        W: FnOnce(&R::Error) -> bool,
        F: FnOnce(Lease) -> R,
    {
        let ctx = match self.context.and_then(ContextBuilder::build) {
            Ok(ctx) => ctx,
            Err(error) => return R::from_result(Err(Rejected::Store(error).into())),
        };
        let mut call = engine.call(ctx).codec(self.codec);
        if let Some(policy) = self.completion {
            call = call.completion(policy);
        }
        let action = |lease: Lease| ended(&lease, body(lease.clone()), hold);
        R::from_result(settle(call.execute_with(action)))
    }
}

/// Holds the key if the body returned an error for which `hold` returns true (RUN-4).
fn ended<R: AnnotatedResult>(
    lease: &Lease,
    answer: R,
    hold: impl FnOnce(&R::Error) -> bool,
) -> Result<R::Value, R::Error> {
    answer.into_result().inspect_err(|error| {
        if hold(error) {
            lease.hold_on_error();
        }
    })
}

/// The return type of an annotated function: a `Result` whose error type can carry a [`Rejected`].
#[diagnostic::on_unimplemented(
    message = "the return type `{Self}` cannot report that the call was rejected",
    label = "a function with a `key` must return a `Result`",
    note = "a rejected call returns an error, for example because another call with the same key \
            is still running; the error type must implement `From<retryproof::Rejected>`"
)]
pub trait AnnotatedResult: Sized {
    /// The value that is stored and replayed.
    type Value;
    /// The error type of the body and of a rejected call.
    type Error: From<Rejected>;

    /// Converts the returned value to a `Result`.
    ///
    /// # Errors
    /// The function's own error.
    fn into_result(self) -> Result<Self::Value, Self::Error>;

    /// Converts a `Result` to the function's return type.
    fn from_result(result: Result<Self::Value, Self::Error>) -> Self;
}

impl<T, E: TakesRejected> AnnotatedResult for Result<T, E> {
    type Value = T;
    type Error = E;

    fn into_result(self) -> Self {
        self
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// `From<Rejected>` under another name, which lets the compiler report a missing implementation
/// clearly.
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` cannot report that the call was rejected",
    label = "this error type must implement `From<retryproof::Rejected>`",
    note = "a rejected call returns this error, for example because another call with the same key \
            is still running, or because the store is unreachable"
)]
pub trait TakesRejected: From<Rejected> {}

#[diagnostic::do_not_recommend]
impl<E: From<Rejected>> TakesRejected for E {}

/// Provides the engine of an annotated function. This trait is `AsRef` under another name, which
/// lets the compiler give a clear message (ANN-3).
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not provide an engine of the type `{E}`",
    label = "this value must provide the engine of the function",
    note = "implement `AsRef<{E}>` for this type, or add an expression that provides the engine: \
            `engine = ..`",
    note = "an async function needs an `IdempotencyEngine`, a blocking function needs a \
            `blocking::Engine`, and a function with `completion = \"joined\"` needs the \
            `JoinedEngine` of its transaction's type"
)]
pub trait ProvidesEngine<E> {
    /// Returns a clone of the engine, because the body may move the value that contains the engine.
    fn engine(&self) -> E;
}

#[diagnostic::do_not_recommend]
impl<P: AsRef<E> + ?Sized, E: Clone> ProvidesEngine<E> for P {
    fn engine(&self) -> E {
        self.as_ref().clone()
    }
}

#[cfg(test)]
mod tests;
