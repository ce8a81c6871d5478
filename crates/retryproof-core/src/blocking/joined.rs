// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocking joined completion: [`JoinedEngine`], [`JoinedCall`] and [`PendingCommit`] (CMP-7).

use super::engine::{Engine, HeldLease};
use crate::codec::{Codec, JsonCodec};
use crate::context::IdempotencyContext;
use crate::engine::{self, BlockOn, Hook, JoinError, Lease, NoHook, OnFenced};
use crate::error::Result;
use crate::outcome::{ExecuteError, Outcome, Recorded, Report};
use crate::payload::Payload;
use crate::store::{Dialect, OwnedTx, TxPort, TxSource};

/// The blocking form of [`crate::JoinedEngine`], which commits the writes of each action together
/// with its record. [`Engine::joined`] creates a blocking joined engine.
#[derive(Debug)]
pub struct JoinedEngine<T> {
    engine: Engine,
    joined: engine::JoinedEngine<T>,
}

impl Engine {
    /// Like [`crate::IdempotencyEngine::joined`].
    ///
    /// # Errors
    /// `Unsupported` if the store cannot join transactions (memory, Redis), or cannot join those of
    /// the source's database.
    pub fn joined<D, S>(&self, source: S) -> Result<JoinedEngine<S::Tx>>
    where
        D: Dialect,
        S: TxSource<D>,
        S::Tx: OwnedTx<D>,
    {
        Ok(JoinedEngine { joined: self.engine().joined(source)?, engine: self.clone() })
    }
}

impl<T: Send + 'static> JoinedEngine<T> {
    /// Returns the engine, for calls that do not join a transaction.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Runs `action` on this thread, in a transaction that contains the action's writes and its
    /// record, like [`crate::JoinedEngine::execute`].
    ///
    /// # Errors
    /// The errors of the async method. Inside a runtime, the error is `Store` with the kind
    /// `Unsupported`.
    ///
    /// # Panics
    /// If the action panics, the engine rolls the transaction back. It frees the key, or lets the
    /// lease run out after [`Lease::hold_on_error`] (RUN-4). Then the panic resumes.
    pub fn execute<V, E>(
        &self,
        ctx: IdempotencyContext,
        action: impl FnOnce(&mut T) -> Result<V, E>,
    ) -> Result<Outcome<V>, ExecuteError<E>>
    where
        JsonCodec: Codec<V>,
    {
        self.call(ctx).execute(action)
    }

    /// Creates a call whose options you can set before it runs.
    pub fn call(&self, ctx: IdempotencyContext) -> JoinedCall<T> {
        JoinedCall { engine: self.engine.clone(), call: self.joined.call(ctx) }
    }
}

impl<T> Clone for JoinedEngine<T> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), joined: self.joined.clone() }
    }
}

impl<T> AsRef<JoinedEngine<T>> for JoinedEngine<T> {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<T> AsRef<Engine> for JoinedEngine<T> {
    fn as_ref(&self) -> &Engine {
        &self.engine
    }
}

/// One joined call with its options; see [`crate::JoinedCall`].
#[derive(Debug)]
#[must_use = "a call does nothing until `execute` is called"]
pub struct JoinedCall<T, C = JsonCodec, H = NoHook> {
    engine: Engine,
    call: engine::JoinedCall<T, C, H>,
}

impl<T, C, H> JoinedCall<T, C, H> {
    /// Encodes the value with this codec instead of JSON.
    pub fn codec<D>(self, codec: D) -> JoinedCall<T, D, H> {
        JoinedCall { engine: self.engine, call: self.call.codec(codec) }
    }

    /// Like [`crate::JoinedCall::on_fenced`].
    pub fn on_fenced<F>(self, hook: F) -> JoinedCall<T, C, Hook<F>> {
        JoinedCall { engine: self.engine, call: self.call.on_fenced(hook) }
    }
}

impl<T: Send + 'static, C, H> JoinedCall<T, C, H> {
    /// Runs the action on this thread, in a transaction.
    ///
    /// # Errors
    /// Same as [`JoinedEngine::execute`].
    pub fn execute<V, E>(
        self,
        action: impl FnOnce(&mut T) -> Result<V, E>,
    ) -> Result<Outcome<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
    {
        self.report(action).map(|report| report.outcome)
    }

    /// Like [`execute`](Self::execute), but also passes the lease to the action.
    ///
    /// # Errors
    /// Same as [`execute`](Self::execute).
    pub fn execute_with<V, E>(
        self,
        action: impl FnOnce(Lease, &mut T) -> Result<V, E>,
    ) -> Result<Outcome<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
    {
        self.run(action).map(|report| report.outcome)
    }

    /// Like [`execute`](Self::execute), but also reports whether the result was recorded (CMP-4).
    ///
    /// # Errors
    /// Same as [`execute`](Self::execute).
    pub fn report<V, E>(
        self,
        action: impl FnOnce(&mut T) -> Result<V, E>,
    ) -> Result<Report<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
    {
        self.run(|_, tx| action(tx))
    }

    fn run<V, E>(
        self,
        action: impl FnOnce(Lease, &mut T) -> Result<V, E>,
    ) -> Result<Report<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
    {
        let Self { engine, call } = self;
        let entry = engine.enter().map_err(ExecuteError::Store)?;
        call.report_blocking(&entry, action)
    }
}

impl HeldLease {
    /// Like [`crate::HeldLease::complete_in`]: writes the result in the caller's transaction.
    /// Inside a runtime, the call returns an error, and the key is freed in the background.
    ///
    /// # Errors
    /// The errors of the async method. **Roll the transaction back on any error.**
    pub fn complete_in<D, P>(self, tx: &mut P, value: Payload) -> Result<PendingCommit, JoinError>
    where
        D: Dialect,
        P: TxPort<D> + ?Sized,
    {
        let (held, engine) = self.into_parts();
        let joining = held.complete_in(tx, value);
        let pending = engine.enter().map_err(JoinError::Failed)?.block_on(joining)?;
        Ok(PendingCommit { pending, engine })
    }
}

/// A completion that the caller has not committed yet; see [`crate::PendingCommit`].
#[derive(Debug)]
#[must_use = "commit the transaction, then call `committed()`; or roll it back, then call \
              `rolled_back()`"]
pub struct PendingCommit {
    pending: engine::PendingCommit,
    engine: Engine,
}

impl PendingCommit {
    /// Like [`crate::PendingCommit::recorded`].
    #[must_use]
    pub fn recorded(&self) -> Recorded {
        self.pending.recorded()
    }

    /// Like [`crate::PendingCommit::committed`].
    pub fn committed(self) {
        self.pending.committed();
    }

    /// Like [`crate::PendingCommit::rolled_back`].
    ///
    /// # Errors
    /// The errors of the async method. Inside a runtime, the error is `Unsupported`, and the call
    /// continues in the background.
    pub fn rolled_back(self) -> Result<()> {
        self.engine.enter()?.block_on(self.pending.rolled_back())
    }

    /// Like [`crate::PendingCommit::in_doubt`].
    ///
    /// # Errors
    /// The errors of the async method. Inside a runtime, the error is `Unsupported`, and the call
    /// continues in the background.
    pub fn in_doubt(self) -> Result<bool> {
        self.engine.enter()?.block_on(self.pending.in_doubt())
    }
}
