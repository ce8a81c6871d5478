// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PendingCommit`]: a completion that stands in a transaction and waits for its commit (CMP-7).

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::finish::{is_too_large, release_until, repeated};
use super::gate::Finish;
use super::running::Permit;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Lease;
use crate::observe::Phase;
use crate::outcome::Recorded;
use crate::payload::Tombstone;
use crate::store::caught::caught;
use crate::store::{Completion, Dialect, DynJoin, FencedWrite, TxPort};
use crate::told::End;

/// A completion that was written in a transaction and is not committed yet: the answer of
/// [`HeldLease::complete_in`](crate::HeldLease::complete_in).
///
/// The heartbeat has ended, and the record's row is locked until the transaction ends: commit soon,
/// then say so.
///
/// Dropped without a word, it asks the store in the background, by owner, what became of the
/// transaction: a record that was committed stays, and a key whose transaction was rolled back is
/// freed (CMP-7). So a future that is dropped between the two leaves nothing wrong behind; only the
/// waiters of this process may hear of the result a little later.
#[must_use = "commit the transaction, then say `committed()`; or roll it back, then say `rolled_back()`"]
pub struct PendingCommit {
    /// Taken by whatever ends the lease.
    open: Option<Open>,
    runtime: Handle,
}

struct Open {
    lease: Lease,
    join: Arc<dyn DynJoin>,
    done: Completion,
    tombstone: bool,
    /// Why a tombstone stands in the place of the value (CMP-9).
    refused: Option<Error>,
    /// As long as it lives, a shutdown waits.
    permit: Option<Permit>,
}

/// Why a completion was not written in the transaction. **Roll the transaction back**: its writes
/// must not stand without the record.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// Another owner has taken over, or the record is gone; nothing was written (CMP-2).
    LeaseLost,
    /// The store cannot join this transaction, or the database refused the statement. The key is
    /// freed in the background.
    Failed(Error),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseLost => f.write_str("the lease was lost; roll the transaction back"),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for JoinError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::LeaseLost => None,
            Self::Failed(error) => error.source(),
        }
    }
}

impl PendingCommit {
    pub(super) fn new(
        lease: Lease,
        join: Arc<dyn DynJoin>,
        done: Completion,
        tombstone: bool,
        permit: Option<Permit>,
        runtime: Handle,
    ) -> Self {
        let open = Open { lease, join, done, tombstone, refused: None, permit };
        Self { open: Some(open), runtime }
    }

    /// What a commit will have recorded: the value, or a tombstone in its place when the store
    /// takes no value of that size (CMP-9).
    #[must_use]
    pub fn recorded(&self) -> Recorded {
        match &self.open {
            Some(open) if !open.tombstone => Recorded::Yes,
            _ => Recorded::Tombstone,
        }
    }

    /// The transaction was committed: tells observers, and wakes those who wait for the result.
    pub fn committed(mut self) {
        if let Some(open) = self.open.take() {
            open.committed();
        }
    }

    /// The transaction was rolled back: frees the key at once.
    ///
    /// # Errors
    /// When the store did not confirm; the release goes on in the background until the lease is
    /// over.
    ///
    /// # Cancel safety
    /// Dropped, the release is finished in the background.
    pub async fn rolled_back(mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        open.lease.0.end(End::Failed(Phase::RolledBack));
        let bound = open.bound();
        let work = open.in_background(&self.runtime, open.lease.clone(), release);
        timeout(bound, work).await.unwrap_or_else(|_| Err(not_in_time())).map(drop)
    }

    /// Nobody knows whether the transaction was committed: the answer of the COMMIT was lost. Asks
    /// the store, by owner. `true`: it was, and so was everything in it. `false`: it was not, and
    /// the key is free.
    ///
    /// # Errors
    /// When the store did not answer; the question goes on in the background until the lease is
    /// over.
    ///
    /// # Cancel safety
    /// Dropped, it is finished in the background.
    pub async fn in_doubt(mut self) -> Result<bool> {
        let Some(open) = self.open.take() else { return Ok(false) };
        let (bound, lease) = (open.bound(), open.lease.clone());
        let running = Arc::clone(&lease.0.engine.running);
        let work = Finish::new(self.runtime.clone(), running, open.settle());
        timeout(bound, work).await.unwrap_or_else(|_| Err(not_in_time()))
    }

    /// Writes the record in the transaction: ends the heartbeat, awaits its end, then the one
    /// fenced statement. How many rows it matched: exactly one, or the lease is lost.
    pub(super) async fn write<D: Dialect, P: TxPort<D> + ?Sized>(
        &mut self,
        tx: &mut P,
    ) -> Result<u64> {
        let Some(open) = &mut self.open else { return Ok(0) };
        let state = &open.lease.0;
        // A beat would wait for the row that the statement locks (RUN-3).
        state.end_beats().await;
        let most = state.engine.max_value;
        if is_too_large(&open.done, open.tombstone, most) {
            let error =
                Error::new(ErrorKind::TooLarge, "the value is larger than the store accepts")
                    .with("bytes", open.done.value.len())
                    .with("limit", most);
            let error = open.named(error);
            tracing::warn!(identity = %state.identity, %error, "the result is recorded as a \
                 tombstone (CMP-9)");
            open.done.value = Tombstone::new().into_envelope();
            open.tombstone = true;
            open.refused = Some(error);
        }
        let run = pin!(async {
            let statement = open.join.dyn_completion(&state.identity, &state.owner, &open.done);
            tx.run_statement(statement.sql, &statement.params).await
        });
        let rows = timeout(open.bound(), caught(run)).await;
        rows.unwrap_or_else(|_| Err(not_in_time())).map_err(|error| open.named(error))
    }

    /// Why a tombstone stands in the place of the value.
    pub(super) fn take_refused(&mut self) -> Option<Error> {
        self.open.as_mut().and_then(|open| open.refused.take())
    }

    /// The lease was lost: nothing of ours stands in the store. In case the store knows better,
    /// because the transaction was one of another database, the key is freed; `true` says that it
    /// was so.
    pub(super) async fn lost(mut self) -> bool {
        let Some(open) = self.open.take() else { return false };
        let answer = open.in_background(&self.runtime, open.lease.clone(), release).await;
        let state = &open.lease.0;
        if matches!(answer, Ok(FencedWrite::Applied)) {
            state.end(End::Failed(Phase::RolledBack));
            return true;
        }
        open.refused_for_good();
        false
    }

    /// As [`lost`](Self::lost), from a place where the transaction is still open, so that nothing
    /// can be asked.
    pub(super) fn lost_soon(mut self) {
        if let Some(open) = self.open.take() {
            open.refused_for_good();
            let lease = open.lease.clone();
            // A shutdown waits for it.
            let ending = lease.0.engine.running.ending();
            drop(self.runtime.spawn(async move {
                let _ = release(lease).await;
                drop(ending);
            }));
        }
    }
}

impl Drop for PendingCommit {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        open.lease.0.stop_beats();
        let ending = open.lease.0.engine.running.ending();
        // A runtime that has shut down drops it: then the lease runs out.
        drop(self.runtime.spawn(async move {
            let _ = open.settle().await;
            drop(ending);
        }));
    }
}

impl fmt::Debug for PendingCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCommit")
            .field("lease", &self.open.as_ref().map(|open| &open.lease))
            .finish_non_exhaustive()
    }
}

impl Open {
    fn bound(&self) -> Duration {
        self.lease.0.engine.gate.operation_timeout()
    }

    fn named(&self, error: Error) -> Error {
        error.during("complete").for_identity(self.lease.identity())
    }

    fn in_background<F>(
        &self,
        runtime: &Handle,
        lease: Lease,
        work: impl FnOnce(Lease) -> F,
    ) -> Finish<F>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        Finish::new(runtime.clone(), Arc::clone(&self.lease.0.engine.running), work(lease))
    }

    fn committed(&self) {
        let state = &self.lease.0;
        let recorded = if self.tombstone { Recorded::Tombstone } else { Recorded::Yes };
        self.join.dyn_committed(&state.identity);
        state.end(End::Completed(recorded));
    }

    fn refused_for_good(&self) {
        let state = &self.lease.0;
        tracing::warn!(identity = %state.identity, token = %state.token,
            "completion refused: the lease was lost");
        state.end(End::Lost);
    }

    /// What became of the transaction, read by owner with the calls that every store has. A release
    /// tells the two apart and is what a rolled-back transaction needs anyway: it removes a record
    /// that is still in progress under this owner, and touches no other. Where it waits for the row
    /// that the transaction still locks, the answer comes with the transaction's end.
    async fn settle(self) -> Result<bool> {
        let state = &self.lease.0;
        let committed = match release(self.lease.clone()).await {
            Ok(FencedWrite::Applied | FencedWrite::AlreadyApplied) => Ok(false),
            // Complete, or another owner's. The record is not in progress under this owner, so that
            // this completion writes nothing.
            Ok(FencedWrite::NotOwner) => self.is_ours().await,
            Err(error) => Err(error),
        };
        match &committed {
            Ok(true) => self.committed(),
            Ok(false) => state.end(End::Failed(Phase::RolledBack)),
            Err(error) => {
                tracing::error!(
                    identity = %state.identity, token = %state.token, %error,
                    "nobody knows whether a joined transaction was committed; a retry after the \
                     lease finds its result, or runs"
                );
                state.end(End::Failed(Phase::Completion));
            }
        }
        drop(self.permit);
        committed
    }

    async fn is_ours(&self) -> Result<bool> {
        let state = &self.lease.0;
        repeated(&state.engine, state.until(), || {
            let engine = &state.engine;
            let call = engine.dyn_store().dyn_complete(
                state.identity.clone(),
                state.owner,
                self.done.clone(),
            );
            engine.gate.always("complete", &state.identity, call)
        })
        .await
        .map(|answer| answer != FencedWrite::NotOwner)
    }
}

/// Frees the key, unless it is not ours any more.
async fn release(lease: Lease) -> Result<FencedWrite> {
    let state = &lease.0;
    state.end_beats().await;
    release_until(&state.engine, &state.identity, state.owner, state.until()).await
}

pub(super) fn not_in_time() -> Error {
    Error::unavailable("no answer in time")
}
