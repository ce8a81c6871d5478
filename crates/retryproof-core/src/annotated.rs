// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `#[idempotent(key = ..)]` calls. No API: generated code reaches it through the facade's
//! `__private`, and it changes with the attribute.
//!
//! It is here, and not in quoted tokens, so that it is read, typed and tested as any other code.

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

/// One call of an annotated function: its identity and what the attribute says.
#[derive(Debug)]
pub struct Keyed<C = JsonCodec> {
    context: Result<ContextBuilder>,
    codec: C,
    completion: Option<CompletionFailurePolicy>,
}

impl Keyed {
    /// A call under a scope that the code names.
    pub fn new<K: Display + ?Sized>(scope: &'static str, key: &K) -> Self {
        Self::over(Ok(IdempotencyContext::builder(scope, key.to_string())))
    }

    /// A call of a function without a named scope: its module's path and its name,
    /// [`default_scope`]. Where it stands in something else than a module, which `module_path!()`
    /// does not tell, the name of `here`, a closure in its body, does (ANN-4).
    pub fn function<K: Display + ?Sized, H>(path: &'static str, key: &K, here: H) -> Self {
        let place = place(&here);
        if place == path {
            return Self::new(path, key);
        }
        // The compiler does not write the mark of a raw identifier there.
        let bare = path.replace("r#", "");
        match bare.rsplit("::").next() {
            Some(name) if place != bare && place.ends_with(name) => {
                Self::under(place.to_owned(), key)
            }
            _ => Self::new(path, key),
        }
    }

    /// A call of a method without a named scope: the type's full path, the trait with its
    /// parameters where the method is one of a trait, and the method's name (ANN-4). The trait is
    /// known by the name of `here`, a closure in the body.
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

    /// As [`ContextBuilder::fingerprint`], of a value (FP-4).
    #[must_use]
    pub fn fingerprint<F: Serialize + ?Sized>(self, value: &F) -> Self {
        let context =
            self.context.and_then(|context| Ok(context.fingerprint(Fingerprint::of(value)?)));
        Self { context, ..self }
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

    /// Runs the body of an async function, or answers without it. An error for which `hold` is true
    /// leaves the key to the lease (RUN-4).
    pub async fn run<R, W, F, Fut>(self, engine: IdempotencyEngine, hold: W, body: F) -> R
    where
        R: Answer,
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

    /// As [`run`](Self::run), in a transaction that the record joins (CMP-7).
    pub async fn run_joined<R, T, W, F>(self, engine: JoinedEngine<T>, hold: W, body: F) -> R
    where
        R: Answer,
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

    /// As [`run_joined`](Self::run_joined), for a blocking function.
    #[cfg(feature = "blocking")]
    pub fn run_blocking_joined<R, T, W, F>(
        self,
        engine: BlockingJoinedEngine<T>,
        hold: W,
        body: F,
    ) -> R
    where
        R: Answer,
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

    /// As [`run`](Self::run), for a blocking function.
    #[cfg(feature = "blocking")]
    pub fn run_blocking<R, W, F>(self, engine: BlockingEngine, hold: W, body: F) -> R
    where
        R: Answer,
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

/// The fate of the body's error (RUN-4).
fn ended<R: Answer>(
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

/// The full path of a function as its scope (ANN-4), evaluated at compile time.
///
/// # Panics
/// If the path is longer than a scope may be; in a `const`, which is where the attribute puts it,
/// that is a compile error.
#[must_use]
pub const fn default_scope(path: &'static str) -> &'static str {
    assert!(path.len() <= MAX_SCOPE_BYTES, "{}", TOO_LONG);
    path
}

const TOO_LONG: &str = "the path of this function is longer than a scope may be; name the scope";

/// The full path of the function that a closure stands in, as the compiler writes it, but without
/// its lifetimes, which are written `<'_>` where they are bound early. It has no other parameters:
/// a generic function names its scope (ANN-1).
fn place<H>(_: &H) -> &'static str {
    let mut path = type_name::<H>();
    // One for the closure, one for the future of an async function, and more where other attributes
    // wrapped the body.
    while let Some(outer) = path.strip_suffix("::{{closure}}") {
        path = outer;
    }
    opening(path).map_or(path, |at| &path[..at])
}

/// `<Owner as Trait>::name` for a method of a trait, wherever its `impl` stands; `Owner::name` for
/// any other. What the compiler may write one day that is read as neither stays as it is: a scope
/// that is too narrow is better than two methods under one.
fn method_path(owner: &str, name: &str, place: &str) -> String {
    let own = || format!("{owner}::{name}");
    let bare = name.strip_prefix("r#").unwrap_or(name);
    let Some(block) = place.strip_suffix(bare).and_then(|block| block.strip_suffix("::")) else {
        return own();
    };
    if block == owner {
        return own();
    }
    let Some(at) = opening(block).filter(|at| *at == 0 || block[..*at].ends_with("::")) else {
        return place.to_owned();
    };
    // `<Owner as Trait>`, or `<impl Trait for Owner>` in a module that is neither's; without a
    // trait `<Owner>` or `<impl Owner>`.
    let block = &block[at + 1..block.len() - 1];
    let header = block.strip_prefix("impl ").unwrap_or(block);
    let of_trait = block
        .strip_prefix(owner)
        .and_then(|rest| rest.strip_prefix(" as "))
        .or_else(|| header.strip_suffix(owner).and_then(|rest| rest.strip_suffix(" for ")));
    match of_trait {
        Some(of_trait) => format!("<{owner} as {of_trait}>::{name}"),
        None if header == owner => own(),
        None => place.to_owned(),
    }
}

/// Where the angle bracket opens that a path ends by closing.
fn opening(path: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, byte) in path.bytes().enumerate().rev() {
        match byte {
            // Not that of `fn() -> u8`.
            b'>' if !path[..at].ends_with('-') => open += 1,
            b'<' => open = open.checked_sub(1)?,
            _ => {}
        }
        if open == 0 {
            return (byte == b'<').then_some(at);
        }
    }
    None
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

/// Where an annotated function finds its engine: `AsRef` under a name of ours, for the message
/// (ANN-3).
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no idempotency engine of the type `{E}`",
    label = "the engine is looked for here",
    note = "implement `AsRef<{E}>` for it, or name an expression that has it: `engine = ..`",
    note = "async functions take an `IdempotencyEngine`, blocking ones a `blocking::Engine`; \
         with `completion = \"joined\"`, the `JoinedEngine` of the transaction's type"
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
mod tests;
