// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Force`]: what an operator may do to a record without being its holder (OPS-3, OPS-4).

use std::future::Future;

use super::{Completion, IdempotencyStore, LiveLease, RecordState, RecordSummary};
use crate::error::Result;
use crate::identity::Identity;
use crate::owner::{FencingToken, OwnerId};

/// Lets an operator change a record: release or resolve what a dead holder left, forget a result,
/// or erase an answer.
///
/// Each call is fenced by the token that the operator saw, so a record that was granted again in
/// the meantime stays unchanged. A holder that is still alive is fenced by its owner id, as
/// everywhere else: once its record has been released or resolved, its own late writes get
/// [`NotOwner`](super::FencedWrite::NotOwner), or, for a release,
/// [`AlreadyApplied`](super::FencedWrite::AlreadyApplied).
#[diagnostic::on_unimplemented(
    message = "operators cannot change records of the store `{Self}`",
    label = "expected a store that implements `Force`",
    note = "implement `Force`, or leave out `with_force()`"
)]
pub trait Force: IdempotencyStore {
    /// Changes the record as `req` requests, or returns why the record was not changed.
    ///
    /// # Behaviour
    /// A record that [`Inspect::get`](super::Inspect::get) would not describe is
    /// [`Absent`](Forced::Absent); an expired record is present. For a record that is present,
    /// [`ForceRequest::refusal`] says whether the request applies to it. If it does:
    ///
    /// | action | the record |
    /// |---|---|
    /// | release | is deleted, as by [`release`](IdempotencyStore::release) |
    /// | resolve | is COMPLETE for the request's own owner, with the token and the count of takeovers unchanged and without a note. If the completion has no fingerprint, the record keeps the fingerprint of its grant, if the store has it |
    /// | forget | is deleted. The token of the next grant is greater (ACQ-10) |
    /// | erase | has a [`Tombstone`](crate::Tombstone) without detail in place of its value; nothing else changes |
    ///
    /// A release and a resolve wake the waiters (ACQ-4).
    ///
    /// # Errors
    /// `Unavailable` if the outcome is unknown; `Corrupt` if the record cannot be read (CMP-8);
    /// `TooLarge` if the value of a resolve exceeds the store's limit (CMP-9).
    ///
    /// # Atomicity
    /// The comparison of token, state and lease, and the change, are one step by the store's clock.
    /// A dropped call took effect either completely or not at all. Unless the key was granted again
    /// in the meantime, a repeated resolve or erase returns `Applied` again, and a repeated release
    /// or forget returns `Absent`. A repeated call changes nothing more.
    fn force(
        &self,
        id: &Identity,
        req: &ForceRequest,
    ) -> impl Future<Output = Result<Forced>> + Send;
}

/// A change that an operator requests.
///
/// ```
/// use retryproof_core::{CodecId, Payload};
/// use retryproof_core::store::{Completion, ForceRequest};
/// # use retryproof_core::FencingToken;
/// # use std::time::Duration;
/// # let (token, ttl) = (FencingToken::new(1), Duration::from_secs(1));
/// let release = ForceRequest::release(token);
///
/// let receipt = Payload::new(CodecId::BYTES, 0, b"receipt 1").into_envelope();
/// let resolve = ForceRequest::resolve(token, Completion::new(receipt, ttl, None)).even_if_live();
/// # let _ = (release, resolve);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ForceRequest {
    /// The token that the operator saw.
    pub token: FencingToken,
    /// What to do.
    pub action: ForceAction,
    /// Whether a release or a resolve may end a live lease, whose holder may still be running the
    /// work.
    pub even_if_live: bool,
}

/// What an operator does to a record.
#[derive(Debug, Clone)]
pub enum ForceAction {
    /// Deletes a record in progress, so that the next acquire is granted immediately.
    Release,
    /// Completes a record in progress on behalf of its holder.
    Resolve {
        /// The owner id of the complete record. It differs from the holder's id, so that a late
        /// completion by the holder is refused.
        by: OwnerId,
        /// What to store.
        done: Completion,
    },
    /// Deletes a complete record, so that the work may run again.
    Forget,
    /// Replaces the value of a complete record by a tombstone: the answer is gone, and the work
    /// does not run again while the record is kept.
    Erase,
}

/// What a store did to a record, or why the record was not changed.
#[derive(Debug, Clone)]
#[must_use]
pub enum Forced {
    /// The record was changed.
    Applied,
    /// The record is in progress, and its lease is live. Nothing changed.
    Live(LiveLease),
    /// The record is in progress, and its lease is over: there is no result to forget or to erase.
    /// Nothing changed.
    Unfinished,
    /// The record is complete: there is no lease to release or to resolve. Nothing changed.
    Finished,
    /// The record was granted again, with this token. Nothing changed.
    AnotherToken(FencingToken),
    /// There is no record.
    Absent,
}

impl ForceRequest {
    /// Creates a request to delete the record of a dead holder.
    #[must_use]
    pub fn release(token: FencingToken) -> Self {
        Self::new(token, ForceAction::Release)
    }

    /// Creates a request to complete the record of a dead holder. If the answer to the request was
    /// lost, repeat the same request instead of creating a new one.
    ///
    /// # Panics
    /// Panics if the operating system cannot provide random bytes.
    #[must_use]
    pub fn resolve(token: FencingToken, done: Completion) -> Self {
        Self::new(token, ForceAction::Resolve { by: OwnerId::new(), done })
    }

    /// Creates a request to let finished work run again.
    #[must_use]
    pub fn forget(token: FencingToken) -> Self {
        Self::new(token, ForceAction::Forget)
    }

    /// Creates a request to erase an answer.
    #[must_use]
    pub fn erase(token: FencingToken) -> Self {
        Self::new(token, ForceAction::Erase)
    }

    fn new(token: FencingToken, action: ForceAction) -> Self {
        Self { token, action, even_if_live: false }
    }

    /// Lets a release or a resolve end a live lease. A forget and an erase still refuse a live
    /// lease.
    #[must_use]
    pub fn even_if_live(mut self) -> Self {
        self.even_if_live = true;
        self
    }

    /// Whether the action applies to records in progress rather than to complete records.
    #[must_use]
    pub fn ends_a_lease(&self) -> bool {
        matches!(self.action, ForceAction::Release | ForceAction::Resolve { .. })
    }

    /// Returns the answer for a record that the request must not change; `None` if the request
    /// applies to the record `found`, which belongs to `owner`.
    #[must_use]
    pub fn refusal(&self, owner: OwnerId, found: &RecordSummary) -> Option<Forced> {
        if found.token != self.token {
            return Some(Forced::AnotherToken(found.token));
        }
        match (found.state, found.remaining) {
            (RecordState::InProgress, Some(remaining))
                if !(self.ends_a_lease() && self.even_if_live) =>
            {
                let lease = LiveLease::new(remaining, found.token);
                Some(Forced::Live(lease.with_holder(found.holder.clone())))
            }
            (RecordState::InProgress, _) => (!self.ends_a_lease()).then_some(Forced::Unfinished),
            (RecordState::Complete, _) => match &self.action {
                // This request has already completed the record, and its first answer was lost.
                ForceAction::Resolve { by, .. } if *by == owner => Some(Forced::Applied),
                ForceAction::Resolve { .. } | ForceAction::Release => Some(Forced::Finished),
                ForceAction::Forget | ForceAction::Erase => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::payload::Tombstone;

    fn requests(token: FencingToken) -> [ForceRequest; 4] {
        let done = Completion::new(Tombstone::new().into_envelope(), Duration::ZERO, None);
        [
            ForceRequest::release(token),
            ForceRequest::resolve(token, done),
            ForceRequest::forget(token),
            ForceRequest::erase(token),
        ]
    }

    fn found(state: RecordState, left: Option<Duration>) -> RecordSummary {
        RecordSummary::new(state, FencingToken::new(7), left, 0, false)
    }

    #[test]
    fn ops_3_the_token_is_compared_before_everything_else() {
        for req in requests(FencingToken::new(6)).map(ForceRequest::even_if_live) {
            for state in [RecordState::InProgress, RecordState::Complete] {
                for left in [None, Some(Duration::from_secs(1))] {
                    let refused = req.refusal(OwnerId::new(), &found(state, left));
                    assert!(
                        matches!(refused, Some(Forced::AnotherToken(seen)) if seen.get() == 7),
                        "{req:?}: {refused:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn ops_3_a_live_lease_is_refused_unless_asked_for() {
        let live = found(RecordState::InProgress, Some(Duration::from_secs(9)));
        for req in requests(FencingToken::new(7)) {
            let refused = req.refusal(OwnerId::new(), &live);
            assert!(
                matches!(&refused, Some(Forced::Live(lease))
                    if lease.remaining == Duration::from_secs(9) && lease.token.get() == 7),
                "{req:?}: {refused:?}"
            );
            let ends = req.ends_a_lease();
            let asked = req.even_if_live().refusal(OwnerId::new(), &live);
            assert_eq!(asked.is_none(), ends, "{asked:?}");
        }
    }

    #[test]
    fn ops_4_each_action_applies_to_one_state() {
        let dead = found(RecordState::InProgress, None);
        for left in [None, Some(Duration::from_secs(1))] {
            let done = found(RecordState::Complete, left);
            for req in requests(FencingToken::new(7)) {
                let (dead, done) =
                    (req.refusal(OwnerId::new(), &dead), req.refusal(OwnerId::new(), &done));
                if req.ends_a_lease() {
                    assert!(dead.is_none() && matches!(done, Some(Forced::Finished)), "{req:?}");
                } else {
                    assert!(done.is_none() && matches!(dead, Some(Forced::Unfinished)), "{req:?}");
                }
            }
        }
    }

    #[test]
    fn ops_3_a_repeated_resolve_is_applied_already() {
        let [_, resolve, ..] = requests(FencingToken::new(7));
        let ForceAction::Resolve { by, .. } = resolve.action else { panic!("a resolve") };
        let done = found(RecordState::Complete, None);
        assert!(matches!(resolve.refusal(by, &done), Some(Forced::Applied)));
    }
}
