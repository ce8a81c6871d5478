// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `#[idempotent(key = ..)]` calls. No API: generated code reaches it through the facade's `__private`, and it
//! changes with the attribute.
//!
//! It is here, and not in quoted tokens, so that it is read, typed and tested as any other code.

use std::any::type_name;
use std::fmt::Display;
use std::time::Duration;

pub use crate::config::CompletionFailurePolicy;
pub use crate::engine::{IdempotencyEngine, JoinedEngine};

#[cfg(feature = "blocking")]
pub use crate::blocking::{Engine as BlockingEngine, JoinedEngine as BlockingJoinedEngine};
use crate::codec::{Codec, JsonCodec};
use crate::context::{ContextBuilder, IdempotencyContext};
use crate::error::Result;
use crate::identity::{MAX_SCOPE_BYTES, Scope};
use crate::outcome::{Rejected, settle};

/// One call of an annotated function: its identity and what the attribute says.
#[derive(Debug)]
pub struct Keyed<C = JsonCodec> {
    context: Result<ContextBuilder>,
    codec: C,
    completion: Option<CompletionFailurePolicy>,
}

impl Keyed {
    /// A call under a scope that the code names, or [`default_scope`].
    pub fn new<K: Display + ?Sized>(scope: &'static str, key: &K) -> Self {
        Self::over(Ok(IdempotencyContext::builder(scope, key.to_string())))
    }

    /// A call of a method without a named scope: the type's full path and the method's name (ANN-4).
    pub fn method<Owner: ?Sized, K: Display + ?Sized>(name: &str, key: &K) -> Self {
        let scope = Scope::new(format!("{}::{name}", type_name::<Owner>()));
        Self::over(scope.map(|scope| IdempotencyContext::builder(scope, key.to_string())))
    }

    fn over(context: Result<ContextBuilder>) -> Self {
        Self { context, codec: JsonCodec, completion: None }
    }
}

impl<C> Keyed<C> {
    /// As [`ContextBuilder::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|context| context.ttl(ttl))
    }

    /// As [`ContextBuilder::lease`].
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|context| context.lease(lease))
    }

    /// As [`ContextBuilder::wait_timeout`].
    #[must_use]
    pub fn wait_timeout(self, wait: Duration) -> Self {
        self.with(|context| context.wait_timeout(wait))
    }

    fn with(self, change: impl FnOnce(ContextBuilder) -> ContextBuilder) -> Self {
        Self { context: self.context.map(change), ..self }
    }

    /// As [`Call::codec`](crate::Call::codec).
    pub fn codec<D>(self, codec: D) -> Keyed<D> {
        Keyed { context: self.context, codec, completion: self.completion }
    }

    /// As [`Call::completion`](crate::Call::completion).
    #[must_use]
    pub fn completion(mut self, policy: CompletionFailurePolicy) -> Self {
        self.completion = Some(policy);
        self
    }

    /// Runs the body of an async function, or answers without it.
    pub async fn run<R, F, Fut>(self, engine: IdempotencyEngine, body: F) -> R
    where
        R: Answer,
        C: Codec<R::Value>,
        F: FnOnce() -> Fut,
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
        R::from_result(settle(call.execute(|| async { body().await.into_result() }).await))
    }

    /// Runs the body of an async function in a transaction that its record joins (CMP-7), or answers without it.
    pub async fn run_joined<R, T, F>(self, engine: JoinedEngine<T>, body: F) -> R
    where
        R: Answer,
        T: Send + 'static,
        C: Codec<R::Value>,
        F: AsyncFnOnce(&mut T) -> R,
    {
        let ctx = match self.context.and_then(ContextBuilder::build) {
            Ok(ctx) => ctx,
            Err(error) => return R::from_result(Err(Rejected::Store(error).into())),
        };
        let call = engine.call(ctx).codec(self.codec);
        R::from_result(settle(call.execute(async move |tx: &mut T| body(tx).await.into_result()).await))
    }

    /// Runs the body of a blocking function in a transaction that its record joins (CMP-7), or answers without it.
    #[cfg(feature = "blocking")]
    pub fn run_blocking_joined<R, T, F>(self, engine: BlockingJoinedEngine<T>, body: F) -> R
    where
        R: Answer,
        T: Send + 'static,
        C: Codec<R::Value>,
        F: FnOnce(&mut T) -> R,
    {
        let ctx = match self.context.and_then(ContextBuilder::build) {
            Ok(ctx) => ctx,
            Err(error) => return R::from_result(Err(Rejected::Store(error).into())),
        };
        let call = engine.call(ctx).codec(self.codec);
        R::from_result(settle(call.execute(|tx| body(tx).into_result())))
    }

    /// Runs the body of a blocking function, or answers without it.
    #[cfg(feature = "blocking")]
    pub fn run_blocking<R, F>(self, engine: BlockingEngine, body: F) -> R
    where
        R: Answer,
        C: Codec<R::Value>,
        F: FnOnce() -> R,
    {
        let ctx = match self.context.and_then(ContextBuilder::build) {
            Ok(ctx) => ctx,
            Err(error) => return R::from_result(Err(Rejected::Store(error).into())),
        };
        let mut call = engine.call(ctx).codec(self.codec);
        if let Some(policy) = self.completion {
            call = call.completion(policy);
        }
        R::from_result(settle(call.execute(|| body().into_result())))
    }
}

/// The full path of a function as its scope (ANN-4), evaluated at compile time.
///
/// # Panics
/// If the path is longer than a scope may be; in a `const`, which is where the attribute puts it, that is a
/// compile error.
#[must_use]
pub const fn default_scope(path: &'static str) -> &'static str {
    assert!(
        path.len() <= MAX_SCOPE_BYTES,
        "the path of this function is longer than a scope may be; name the scope"
    );
    path
}

/// What an annotated function returns: a `Result` that can carry a [`Rejected`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot report that a call is in flight",
    label = "a function with a `key` returns a `Result`",
    note = "its error type implements `From<retryproof::Rejected>`"
)]
pub trait Answer: Sized {
    /// What is stored and replayed.
    type Value;
    /// What the body fails with, and what a rejected call is told by.
    type Error: From<Rejected>;

    /// The answer as the `Result` that it is.
    ///
    /// # Errors
    /// The answer's own.
    fn into_result(self) -> Result<Self::Value, Self::Error>;

    /// The `Result` as the answer that it is.
    fn from_result(result: Result<Self::Value, Self::Error>) -> Self;
}

impl<T, E: TakesRejected> Answer for Result<T, E> {
    type Value = T;
    type Error = E;

    fn into_result(self) -> Self {
        self
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// `From<Rejected>` under a name of ours, so that its absence has a message of ours.
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` cannot say that a call is in flight",
    label = "it wants a `From<retryproof::Rejected>`",
    note = "a call that finds its key in flight, or its store unreachable, is told by this error"
)]
pub trait TakesRejected: From<Rejected> {}

#[diagnostic::do_not_recommend]
impl<E: From<Rejected>> TakesRejected for E {}

/// Where an annotated function finds its engine: `AsRef` under a name of ours, for the message (ANN-3).
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no idempotency engine of the type `{E}`",
    label = "the engine is looked for here",
    note = "implement `AsRef<{E}>` for it, or name an expression that has it: `engine = ..`",
    note = "async functions take an `IdempotencyEngine`, blocking ones a `blocking::Engine`; with `completion = \"joined\"`, \
            the `JoinedEngine` of the transaction's type"
)]
pub trait ProvidesEngine<E> {
    /// A clone, so that the body may move whatever the engine was found in.
    fn engine(&self) -> E;
}

#[diagnostic::do_not_recommend]
impl<P: AsRef<E> + ?Sized, E: Clone> ProvidesEngine<E> for P {
    fn engine(&self) -> E {
        self.as_ref().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use crate::error::ErrorKind;

    struct Orders;

    fn scope(call: Keyed) -> String {
        let ctx = call.context.and_then(ContextBuilder::build).unwrap();
        ctx.identity().scope().as_str().to_owned()
    }

    #[test]
    fn ann_4_default_scopes_are_full_paths() {
        assert_eq!(scope(Keyed::method::<Orders, _>("on", "k")), concat!(module_path!(), "::Orders::on"));
        assert_eq!(scope(Keyed::method::<str, _>("on", "k")), "str::on");
        const PATH: &str = default_scope(concat!(module_path!(), "::on"));
        assert_eq!(scope(Keyed::new(PATH, "k")), concat!(module_path!(), "::on"));
    }

    /// The path of a generic type is known at run time only, so there it is an error of the call.
    #[tokio::test]
    async fn ann_4_id_3_a_path_longer_than_a_scope_is_an_error() {
        let long: &'static str = "p".repeat(256).leak();
        assert!(std::panic::catch_unwind(|| default_scope(long)).is_err());
        assert_eq!(default_scope(&long[..255]), &long[..255]);
        let call = Keyed::method::<Orders, _>(long, "k");
        let answer: Result<u8, Rejected> =
            call.run(IdempotencyEngine::new(MemoryStore::new()), async || unreachable!()).await;
        assert!(matches!(answer, Err(Rejected::Store(error)) if error.kind() == ErrorKind::Invalid));
    }
}
