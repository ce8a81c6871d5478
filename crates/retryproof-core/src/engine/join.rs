// SPDX-License-Identifier: MIT OR Apache-2.0
//! A completion in the caller's transaction: [`HeldLease::complete_in`] writes it, and
//! [`PendingCommit`] represents it until the commit (CMP-7).

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use super::complete::{CompletionResult, Record, release_until_over};
use super::lease::HeldLease;
use super::outcome_event::End;
use super::store_client::in_time;
use crate::blob::Blob;
use crate::error::{Error, Result};
use crate::observe::Phase;
use crate::outcome::Recorded;
use crate::panics::caught;
use crate::payload::{Payload, Tombstone};
use crate::store::{Dialect, DynJoin, FencedWrite, TxPort};

mod open_commit;

use open_commit::OpenCommit;

/// A completion that is written in a transaction but not committed yet.
/// [`HeldLease::complete_in`](crate::HeldLease::complete_in) returns it.
///
/// The heartbeat has ended, and the record's row is locked until the transaction ends. Commit soon,
/// then call [`committed`](Self::committed).
///
/// If this value is dropped, a background task uses the owner id to find out what happened to the
/// transaction. A committed record stays. If the transaction was rolled back, the key is freed
/// (CMP-7), unless the work called [`hold_on_error`](crate::Lease::hold_on_error) (RUN-4). If the
/// value is dropped between the commit and `committed`, the only effect is that waiters in this
/// process may get the result a little later.
#[must_use = "commit the transaction, then call `committed()`; or roll it back, then call \
              `rolled_back()`"]
pub struct PendingCommit {
    /// `None` after a method has begun to end the lease.
    open: Option<OpenCommit>,
}

/// Why a completion was not written in the transaction. **Roll the transaction back**: the other
/// writes must not be committed without the record.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// Another owner has taken over, or the record is gone. The completion was not written (CMP-2).
    LeaseLost,
    /// The store cannot join this transaction, or the database refused the statement. The key is
    /// freed in the background, unless the work called
    /// [`hold_on_error`](crate::Lease::hold_on_error).
    Failed(Error),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseLost => f.write_str(
                "the call lost its lease, so its result was not recorded; roll the transaction \
                 back",
            ),
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

impl HeldLease {
    /// Writes the result as the last statement of the caller's transaction, so that the result is
    /// committed with the caller's writes or not at all (CMP-7). Open the transaction after the
    /// lease has been granted, write, call this method, commit, and then call
    /// [`PendingCommit::committed`].
    ///
    /// This method first stops the heartbeat and awaits its end, so commit soon. After the lease
    /// has run out, only the lock on the record's row prevents a takeover. Use the isolation level
    /// READ COMMITTED. Under a stricter level, the database can refuse the statement because a
    /// heartbeat has changed the row.
    ///
    /// # Errors
    /// **Roll the transaction back on any error.** The error is [`JoinError::LeaseLost`] if another
    /// owner has taken over or the record is gone. It is [`JoinError::Failed`] if the store cannot
    /// join this transaction (`Unsupported`) or the database refuses the statement.
    ///
    /// # Cancel safety
    /// If you drop the future, polled or not, roll the transaction back. The key is freed in the
    /// background, unless the work called [`hold_on_error`](crate::Lease::hold_on_error).
    pub fn complete_in<D, P>(
        self,
        tx: &mut P,
        value: Payload,
    ) -> impl Future<Output = Result<PendingCommit, JoinError>>
    where
        D: Dialect,
        P: TxPort<D> + ?Sized,
    {
        self.record_in(tx, value.into_envelope(), false)
    }

    /// Like [`complete_in`](Self::complete_in), but for a result that cannot be replayed (CMP-9).
    ///
    /// # Errors
    /// Same as [`complete_in`](Self::complete_in).
    ///
    /// # Cancel safety
    /// Same as [`complete_in`](Self::complete_in).
    pub fn complete_tombstone_in<D, P>(
        self,
        tx: &mut P,
        tombstone: Tombstone,
    ) -> impl Future<Output = Result<PendingCommit, JoinError>>
    where
        D: Dialect,
        P: TxPort<D> + ?Sized,
    {
        self.record_in(tx, tombstone.into_envelope(), true)
    }

    fn record_in<D, P>(
        self,
        tx: &mut P,
        envelope: Blob,
        is_tombstone: bool,
    ) -> impl Future<Output = Result<PendingCommit, JoinError>>
    where
        D: Dialect,
        P: TxPort<D> + ?Sized,
    {
        let store = Arc::clone(&self.lease.0.store);
        // Create the pending commit outside the future, so that the key is given up even if the
        // future is dropped before its first poll.
        let pending = match store.shared().joiner::<D>() {
            Ok(join) => Ok(self.join(Arc::clone(join), envelope, is_tombstone)),
            Err(error) => {
                let error = error.for_identity(self.lease.identity());
                drop(self.release_after(Phase::RolledBack));
                Err(JoinError::Failed(error))
            }
        };
        async move {
            let mut pending = pending?;
            match pending.write(tx).await {
                Ok(1) => Ok(pending),
                Ok(_) => {
                    pending.lost_soon();
                    Err(JoinError::LeaseLost)
                }
                // Dropping the pending commit gives up the key after the rollback.
                Err(error) => Err(JoinError::Failed(error)),
            }
        }
    }

    /// Defers the end of the lease until a transaction has been committed or rolled back.
    pub(super) fn join(
        mut self,
        join: Arc<dyn DynJoin>,
        envelope: Blob,
        is_tombstone: bool,
    ) -> PendingCommit {
        self.consumed = true;
        let record = Record::new(&self, envelope, is_tombstone);
        let _permit = self.permit.take();
        let open = OpenCommit { lease: self.lease.clone(), join, record, sent: None, _permit };
        PendingCommit { open: Some(open) }
    }
}

impl PendingCommit {
    /// Returns what a commit records: the value or a tombstone. A tombstone also replaces a value
    /// that is too large for the store (CMP-9).
    #[must_use]
    pub fn recorded(&self) -> Recorded {
        self.open.as_ref().map_or(Recorded::Tombstone, |open| open.record.recorded())
    }

    /// Notifies observers, and wakes the callers that wait for the result. Call this after the
    /// commit.
    pub fn committed(mut self) {
        if let Some(open) = self.open.take() {
            open.committed();
        }
    }

    /// Like [`committed`](Self::committed), but returns how the completion ended.
    pub(super) fn recorded_by_commit(mut self) -> CompletionResult {
        match self.open.take() {
            Some(open) => {
                open.committed();
                open.record.written()
            }
            None => CompletionResult::Recorded,
        }
    }

    /// Frees the key immediately. Call this after the transaction has been rolled back. If the work
    /// called [`hold_on_error`](crate::Lease::hold_on_error), the lease runs out instead (RUN-4).
    ///
    /// # Errors
    /// An error means that the store did not confirm the release. The release then continues in the
    /// background until the lease is over.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release is finished in the background.
    pub async fn rolled_back(mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let state = &open.lease.0;
        state.end(End::Failed(open.phase()));
        if open.lease.holds_on_error() {
            state.stop_beats();
            return Ok(());
        }
        let releasing = state.detach(release_until_over(open.lease.clone()));
        let limit = state.store.operation_timeout();
        releasing.within(limit, "release", &state.identity).await?.map(drop)
    }

    /// Checks with the store whether this owner's record was committed. Call this if COMMIT got no
    /// answer. Returns `true` if the whole transaction was committed. Returns `false` if the
    /// transaction was rolled back. The key is then free, unless the work called
    /// [`hold_on_error`](crate::Lease::hold_on_error) (RUN-4).
    ///
    /// # Errors
    /// An error means that the store did not answer, or that no record shows the outcome, because
    /// the scope is switched off or in shadow mode, or because the store answered after the ttl,
    /// when a committed record may be gone. A check that got no answer continues in the background
    /// until the lease is over.
    ///
    /// # Cancel safety
    /// If the future is dropped, the check is finished in the background.
    pub async fn in_doubt(self) -> Result<bool> {
        Ok(self.find_out().await?.is_some())
    }

    /// Finds out how a transaction ended if COMMIT got no answer. Returns how the completion ended,
    /// or `None` after a rollback.
    pub(super) async fn find_out(mut self) -> Result<Option<CompletionResult>> {
        let Some(open) = self.open.take() else { return Ok(None) };
        let lease = open.lease.clone();
        let state = &lease.0;
        let limit = state.store.operation_timeout();
        state.detach(open.settle()).within(limit, "commit", &state.identity).await?
    }

    /// Writes the record in the transaction: ends the heartbeat, awaits its end, then runs one
    /// fenced statement. Returns how many rows the statement matched. Any number other than one
    /// means that the lease is lost.
    pub(super) async fn write<D: Dialect, P: TxPort<D> + ?Sized>(
        &mut self,
        tx: &mut P,
    ) -> Result<u64> {
        let Some(open) = &mut self.open else { return Ok(0) };
        let state = &open.lease.0;
        // End the heartbeats first, because a heartbeat would wait for the row that the statement
        // locks (RUN-3).
        state.end_beats().await;
        if !state.store.guards() {
            // The scope is switched off or in shadow mode: the writes commit without a record
            // (CTX-5, CTX-6).
            return Ok(1);
        }
        open.record.fit(state.store.max_value(), &state.identity);
        open.sent = Some(state.store.now());
        let run = pin!(async {
            let (id, done) = (state.store.shared().stored(&state.identity), &open.record.done);
            let statement = open.join.dyn_completion(&id, &state.owner, done);
            tx.run_statement(statement.sql, &statement.params).await
        });
        in_time(state.store.operation_timeout(), caught(run))
            .await
            .map_err(|error| error.during("complete").for_identity(&state.identity))
    }

    /// Handles a lost lease. If the store still has a lease of this owner, the transaction did not
    /// see the store's record. This method then gives up the key and returns `true`.
    pub(super) async fn lost(mut self) -> bool {
        let Some(open) = self.open.take() else { return false };
        let state = &open.lease.0;
        let answer = state.detach(OpenCommit::give_up(open.lease.clone())).await;
        if matches!(answer, Ok(FencedWrite::Applied)) {
            state.end(End::Failed(open.phase()));
            return true;
        }
        state.end_as_lost();
        false
    }

    /// Like [`lost`](Self::lost), but for a transaction that is still open, so the store cannot be
    /// queried yet.
    fn lost_soon(mut self) {
        if let Some(open) = self.open.take() {
            let state = &open.lease.0;
            state.end_as_lost();
            if !open.lease.holds_on_error() {
                state.end_in_background(release_until_over(open.lease.clone()));
            }
        }
    }
}

impl Drop for PendingCommit {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let lease = open.lease.clone();
        lease.0.stop_beats();
        lease.0.end_in_background(open.settle());
    }
}

impl fmt::Debug for PendingCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCommit")
            .field("lease", &self.open.as_ref().map(|open| &open.lease))
            .finish_non_exhaustive()
    }
}
