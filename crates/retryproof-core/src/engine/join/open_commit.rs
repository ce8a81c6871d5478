// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`OpenCommit`]: a completion whose transaction has not ended yet, and how the engine finds out
//! whether the transaction was committed (CMP-7).

use std::sync::Arc;

use crate::clock::Instant;
use crate::engine::complete::{CompletionResult, Record, release_until_over, repeat_until};
use crate::engine::lease::Lease;
use crate::engine::outcome_event::End;
use crate::engine::tasks::Permit;
use crate::error::{Error, Result};
use crate::observe::{Phase, ShadowVerdict};
use crate::store::{DynJoin, FencedWrite};

pub(super) struct OpenCommit {
    pub(super) lease: Lease,
    pub(super) join: Arc<dyn DynJoin>,
    pub(super) record: Record,
    /// When the statement that writes the record was sent. The ttl of a committed record cannot
    /// have begun earlier.
    pub(super) sent: Option<Instant>,
    /// A shutdown waits until this permit is dropped.
    pub(super) _permit: Option<Permit>,
}

impl OpenCommit {
    pub(super) fn committed(&self) {
        let state = &self.lease.0;
        if state.store.guards() {
            self.join.dyn_committed(&state.store.shared().stored(&state.identity));
        } else if state.shadow == Some(ShadowVerdict::Executed) {
            // In shadow mode, the record must not affect the transaction, so the record is written
            // after the commit (CTX-6).
            let (state, done) = (Arc::clone(state), self.record.done.clone());
            self.lease.0.end_in_background(async move {
                let call = state.store.complete_call(&state.identity, state.owner, done);
                state.store.complete(&state.identity, call).await
            });
        }
        state.end(self.record.end());
    }

    /// Returns the phase that is reported to observers if the transaction was rolled back.
    pub(super) fn phase(&self) -> Phase {
        if self.lease.holds_on_error() { Phase::Held } else { Phase::RolledBack }
    }

    /// Gives up the key if the record is still `IN_PROGRESS` under this owner, which the answer
    /// `Applied` says. If the transaction still locks the row, the store answers when the
    /// transaction ends.
    ///
    /// Usually a release frees the key. After [`hold_on_error`](Lease::hold_on_error), a last
    /// extend replaces the release, so that the key stays taken until the lease runs out (RUN-4).
    pub(super) async fn give_up(lease: Lease) -> Result<FencedWrite> {
        if !lease.holds_on_error() {
            return release_until_over(lease).await;
        }
        let state = &*lease.0;
        state.end_beats().await;
        let extend = || state.store.extend(&state.identity, state.owner, state.duration);
        repeat_until(&state.store, || state.until(), extend).await
    }

    /// Finds out whether the transaction was committed or rolled back, using only the owner id and
    /// calls that every store supports.
    pub(super) async fn settle(self) -> Result<Option<CompletionResult>> {
        let state = &self.lease.0;
        if !state.store.guards() {
            state.end(End::Failed(Phase::Completion));
            return Err(Error::unavailable(
                "it is unknown whether the transaction was committed: the scope is switched off or \
                 in shadow mode, so there is no record that would show it",
            ));
        }
        let is_committed = match Self::give_up(self.lease.clone()).await {
            Ok(FencedWrite::Applied) => Ok(false),
            Ok(FencedWrite::AlreadyApplied) => self.not_found(),
            // The record is complete or belongs to another owner. To find out which, `is_recorded`
            // repeats the completion. The repeated completion writes nothing in either case.
            Ok(FencedWrite::NotOwner) => match self.is_recorded().await {
                Ok(false) => self.not_found(),
                answer => answer,
            },
            Err(error) => Err(error),
        };
        match is_committed {
            Ok(true) => {
                self.committed();
                Ok(Some(self.record.written()))
            }
            Ok(false) => {
                state.end(End::Failed(self.phase()));
                Ok(None)
            }
            Err(error) => {
                tracing::error!(
                    identity = %state.identity, token = %state.token, %error,
                    "it is unknown whether a joined transaction was committed; after the lease \
                     ends, a retry either gets the recorded result or runs the work again"
                );
                state.end(End::Failed(Phase::Completion));
                Err(error)
            }
        }
    }

    /// Returns whether the transaction was committed, if the store has neither this owner's lease
    /// nor its record. After the ttl, a committed record may be gone too (CMP-6), so the outcome is
    /// unknown.
    fn not_found(&self) -> Result<bool> {
        let now = self.lease.0.store.now();
        if self.sent.is_none_or(|sent| now < sent + self.record.done.ttl) {
            return Ok(false);
        }
        Err(Error::unavailable(
            "it is unknown whether the transaction was committed: the store answered after the \
             ttl, when a committed record may be gone",
        )
        .during("commit")
        .for_identity(&self.lease.0.identity))
    }

    /// Finds out whether the store has this completion, by sending the completion again (CMP-3).
    async fn is_recorded(&self) -> Result<bool> {
        let state = &self.lease.0;
        let store = &*state.store;
        let answer = repeat_until(
            store,
            || state.until(),
            || {
                let done = self.record.done.clone();
                store.complete(
                    &state.identity,
                    store.complete_call(&state.identity, state.owner, done),
                )
            },
        );
        answer.await.map(|answer| answer != FencedWrite::NotOwner)
    }
}
