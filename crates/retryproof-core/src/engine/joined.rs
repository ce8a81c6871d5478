// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`JoinedEngine`]: an engine that opens a transaction for each action and writes the record in it
//! (CMP-7).

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::IdempotencyEngine;
use super::complete::CompletionResult;
use super::join::PendingCommit;
use super::lease::{HeldLease, Lease};
use super::store_client::in_time;
use crate::blob::Blob;
use crate::codec::{Codec, JsonCodec};
use crate::context::IdempotencyContext;
use crate::error::{Error, ErrorKind, Result};
use crate::outcome::{ExecuteError, Outcome};
use crate::payload::{Payload, Tombstone};
use crate::store::{Dialect, DynJoin, OwnedTx, TxSource};

mod call;
mod source;

pub use call::JoinedCall;

use source::{DynTxSource, ErasedSource, TxThrough};

/// Runs actions, and commits the writes of each action together with its record.
/// [`IdempotencyEngine::joined`] creates a joined engine at start-up. `T` is the type of the
/// transaction that an action receives. A clone is cheap.
///
/// A call takes these steps (CMP-7):
/// 1. The grant is committed on the store's own connection.
/// 2. The transaction is opened, and the action writes.
/// 3. The engine stops the heartbeat and waits for its end.
/// 4. The record is written as the last statement, if the owner is still recorded.
/// 5. The transaction is committed, and waiters are woken.
///
/// If the action fails, panics or is dropped, the transaction is rolled back, and the key is free
/// unless the action called `hold_on_error`. If the process dies, the database rolls back and the
/// lease runs out. If the record cannot be written or the commit fails, the action's writes are
/// rolled back too, the key is free unless the action called `hold_on_error`, and the call fails
/// under every completion policy.
///
/// After a process has died, a retry waits for the process's lease to run out, but no longer than
/// its wait timeout. The retry never finds only a part of the transaction's writes.
pub struct JoinedEngine<T> {
    engine: IdempotencyEngine,
    source: Arc<dyn DynTxSource<T>>,
    join: Arc<dyn DynJoin>,
}

impl<T: Send + 'static> JoinedEngine<T> {
    pub(super) fn new<D, S>(engine: IdempotencyEngine, source: S) -> Result<Self>
    where
        D: Dialect,
        S: TxSource<D, Tx = T>,
        T: OwnedTx<D>,
    {
        let join = Arc::clone(engine.store().joiner::<D>()?);
        Ok(Self { engine, source: Arc::new(ErasedSource::new(source)), join })
    }

    /// Returns the engine, for calls that do not join a transaction.
    #[must_use]
    pub fn engine(&self) -> &IdempotencyEngine {
        &self.engine
    }

    /// Runs `action` once for the context's identity, in a transaction that contains the action's
    /// writes and its record. A duplicate gets the stored result. The value is stored as JSON. Use
    /// [`call`](Self::call) for other codecs.
    ///
    /// # Errors
    /// See [`ExecuteError`]. In a joined call:
    /// - `Store` can also mean that no transaction could be opened. In that case, nothing ran, and
    ///   the key is free.
    /// - `Action` means that the transaction was rolled back and the key is free.
    /// - `LeaseLost` means that the completion was refused and the transaction was rolled back
    ///   (CMP-2).
    /// - `Completion` means that the record was not written, that the commit failed, or that the
    ///   transaction was open for longer than [its store allows](OwnedTx::open_at_most) and was
    ///   rolled back (`Unavailable`). In these cases, the call fails under every completion policy.
    ///   The [`error`](crate::CompletionError::error) shows whether the transaction was rolled back
    ///   or is in doubt.
    ///
    /// # Panics
    /// If the action panics, the engine rolls the transaction back. It frees the key, or lets the
    /// lease run out after [`Lease::hold_on_error`](crate::Lease::hold_on_error) (RUN-4). Then the
    /// panic resumes.
    ///
    /// # Cancel safety
    /// If the future is dropped before the commit, the transaction is rolled back. The key is freed
    /// in the background, unless the action called `hold_on_error`. If the future is dropped during
    /// the commit, the commit is finished in the background.
    pub async fn execute<V, E, F>(
        &self,
        ctx: IdempotencyContext,
        action: F,
    ) -> Result<Outcome<V>, ExecuteError<E>>
    where
        JsonCodec: Codec<V>,
        F: AsyncFnOnce(&mut T) -> Result<V, E>,
    {
        self.call(ctx).execute(action).await
    }

    /// Creates a call whose options you can set before it runs.
    pub fn call(&self, ctx: IdempotencyContext) -> JoinedCall<T> {
        JoinedCall { joined: self.clone(), call: self.engine.call(ctx) }
    }

    /// Opens a transaction for a lease that has already been granted. Adapters that run the work
    /// themselves call this method. End the transaction with [`commit`](Self::commit) or
    /// [`roll_back`](Self::roll_back).
    ///
    /// # Errors
    /// The errors of the transaction source, and `Unavailable` if the source takes longer than
    /// `operation-timeout`.
    pub async fn begin(&self) -> Result<T> {
        in_time(self.limit(), self.source.begin()).await.map_err(|error| error.during("begin"))
    }

    /// Records the result in the transaction and commits the transaction: ends the heartbeat,
    /// writes the record, commits and wakes waiters. [`Recorded`](CompletionResult::Recorded) and
    /// [`Tombstoned`](CompletionResult::Tombstoned) mean that the writes are committed.
    /// [`NotOwner`](CompletionResult::NotOwner) and [`RolledBack`](CompletionResult::RolledBack)
    /// mean that the writes are rolled back. [`Unconfirmed`](CompletionResult::Unconfirmed) means
    /// that the outcome is not known yet.
    ///
    /// # Cancel safety
    /// If the future is dropped, the commit is finished in the background.
    pub fn commit(
        &self,
        tx: T,
        held: HeldLease,
        value: Payload,
    ) -> impl Future<Output = CompletionResult> + Send + 'static {
        self.record(tx, held, value.into_envelope(), false)
    }

    /// Like [`commit`](Self::commit), but for work whose result cannot be replayed (CMP-9,
    /// HTTP-13).
    ///
    /// # Cancel safety
    /// Same as [`commit`](Self::commit).
    pub fn commit_tombstone(
        &self,
        tx: T,
        held: HeldLease,
        tombstone: Tombstone,
    ) -> impl Future<Output = CompletionResult> + Send + 'static {
        self.record(tx, held, tombstone.into_envelope(), true)
    }

    /// Rolls the transaction back. A rollback that cannot be confirmed is only logged, because the
    /// database rolls back when the connection ends.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction is dropped too, which rolls it back.
    pub async fn roll_back(&self, tx: T) {
        roll_back(&*self.source, tx, self.limit()).await;
    }

    fn limit(&self) -> Duration {
        self.engine.0.store.operation_timeout()
    }

    fn record(
        &self,
        tx: T,
        held: HeldLease,
        envelope: Blob,
        is_tombstone: bool,
    ) -> impl Future<Output = CompletionResult> + Send + 'static {
        let (source, limit) = (Arc::clone(&self.source), self.limit());
        let lease = held.lease().clone();
        let is_ours = self.engine.0.has_granted(&lease);
        let pending = held.join(Arc::clone(&self.join), envelope, is_tombstone);
        let committing = write_and_commit(source, pending, tx, limit, lease.clone(), is_ours);
        let work = lease.0.detach(committing);
        async move {
            work.within(limit, "commit", lease.identity())
                .await
                .unwrap_or_else(CompletionResult::Unconfirmed)
        }
    }
}

/// Writes the record and commits. If COMMIT gets no answer, finds out whether it took effect.
async fn write_and_commit<T: Send>(
    source: Arc<dyn DynTxSource<T>>,
    mut pending: PendingCommit,
    mut tx: T,
    limit: Duration,
    lease: Lease,
    is_ours: bool,
) -> CompletionResult {
    let written = match is_ours {
        true => pending.write(&mut TxThrough { source: &*source, tx: &mut tx }).await,
        // Another engine granted the lease, so the lease's record can be in a different store.
        false => Err(Error::new(
            ErrorKind::Unsupported,
            "the result cannot be recorded, because another engine granted the lease; create the \
             `JoinedEngine` from the engine that grants the lease",
        )),
    };
    let mut freed = true;
    let failed = match written {
        Ok(1) => match in_time(limit, source.commit(tx)).await {
            Ok(()) => return pending.recorded_by_commit(),
            Err(error) => match pending.find_out().await {
                Ok(Some(result)) => return result,
                Ok(None) => error,
                Err(_) => return CompletionResult::Unconfirmed(error.during("commit")),
            },
        },
        Ok(_) => {
            roll_back(&*source, tx, limit).await;
            if !pending.lost().await {
                return CompletionResult::NotOwner;
            }
            Error::new(
                ErrorKind::Unsupported,
                "the transaction does not see the record of the call, although the store does: the \
                 transaction is on a different database, or its snapshot is older than the lease",
            )
        }
        Err(error) => {
            roll_back(&*source, tx, limit).await;
            freed = pending.rolled_back().await.is_ok();
            error
        }
    };
    let key = if lease.holds_on_error() {
        "stays taken until its lease ends, because its action called `hold_on_error`"
    } else if freed {
        "is free"
    } else {
        "stays taken until the store confirms the release or the lease ends"
    };
    tracing::error!(error = %failed,
        "a joined call failed: its transaction was rolled back, and its key {key}");
    CompletionResult::RolledBack(failed.during("commit"))
}

async fn roll_back<T>(source: &dyn DynTxSource<T>, tx: T, limit: Duration) {
    if let Err(error) = in_time(limit, source.roll_back(tx)).await {
        tracing::warn!(%error, "the database did not confirm a rollback; the database will roll \
                                the transaction back when the connection ends");
    }
}

impl<T> Clone for JoinedEngine<T> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            source: Arc::clone(&self.source),
            join: Arc::clone(&self.join),
        }
    }
}

impl<T> AsRef<JoinedEngine<T>> for JoinedEngine<T> {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<T> AsRef<IdempotencyEngine> for JoinedEngine<T> {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.engine
    }
}

impl<T> fmt::Debug for JoinedEngine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinedEngine").field("engine", &self.engine).finish_non_exhaustive()
    }
}
