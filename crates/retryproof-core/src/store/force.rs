// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Force`]: the changes that an operator can make to a record without being its holder (OPS-3,
//! OPS-4).

use std::future::Future;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::{Completion, IdempotencyStore, LiveLease, RecordState, RecordSummary};
use crate::context::SubjectName;
use crate::error::Result;
use crate::identity::Identity;
use crate::owner::{FencingToken, OwnerId};

/// Lets an operator change a record: release or resolve the record of a dead holder, forget a
/// result, or erase a stored answer.
///
/// Each call is fenced by the token that the operator saw, so a record that was granted again in
/// the meantime stays unchanged. A holder that is still alive is fenced by its owner id, as in
/// every other write. After an operator has released or resolved the record, the holder's late
/// writes get [`NotOwner`](super::FencedWrite::NotOwner). Only a late release of an absent record
/// gets [`AlreadyApplied`](super::FencedWrite::AlreadyApplied).
#[diagnostic::on_unimplemented(
    message = "operators cannot change records of the store `{Self}`",
    label = "expected a store that implements `Force`",
    note = "implement `Force`, or leave out `with_force()`"
)]
pub trait Force: IdempotencyStore {
    /// Changes the record as `req` requests, or returns why the record was not changed.
    ///
    /// # Behaviour
    /// The answer is [`Absent`](Forced::Absent) if [`Inspect::get`](super::Inspect::get) would find
    /// no record. An expired record is not absent. For a record that is present,
    /// [`ForceRequest::refusal`] says whether the request applies to it. If it does:
    ///
    /// | action | the record |
    /// |---|---|
    /// | release | becomes absent, as by [`release`](IdempotencyStore::release) |
    /// | resolve | becomes COMPLETE for the request's own owner id. The token and the takeover count stay, and the note is removed. If the completion has no fingerprint, the record keeps the fingerprint of its grant, which an [`immediate`](super::StoreProfile::immediate) store may not have kept |
    /// | forget | becomes absent. The token of the next grant is greater (ACQ-10) |
    /// | erase | gets a [`Tombstone`](crate::Tombstone) without detail in place of its value; nothing else changes |
    ///
    /// A release and a resolve wake the waiters (ACQ-4).
    ///
    /// # Errors
    /// `Unavailable` if the outcome is unknown; `Corrupt` if the record cannot be read (CMP-8);
    /// `TooLarge` if the value of a resolve exceeds the store's limit (CMP-9).
    ///
    /// # Atomicity
    /// The store compares token, state and lease by its own clock and makes the change, all in one
    /// step. A dropped call took effect either completely or not at all. A repeated resolve or
    /// erase returns `Applied` again, and a repeated release or forget returns `Absent`, unless the
    /// key was granted again in the meantime. A repeated call changes nothing more. A resolve
    /// returns [`Finished`](Forced::Finished) if the record was completed with another value or by
    /// the holder itself.
    fn force(
        &self,
        id: &Identity,
        req: &ForceRequest,
    ) -> impl Future<Output = Result<Forced>> + Send;
}

/// A change that an operator requests.
///
/// ```
/// use retryproof_core::{CodecId, Identity, Payload};
/// use retryproof_core::store::{Completion, ForceRequest};
/// # use retryproof_core::FencingToken;
/// # use std::time::Duration;
/// # let (token, ttl) = (FencingToken::new(1), Duration::from_secs(1));
/// let release = ForceRequest::release(token);
///
/// let id = Identity::of("payments", "order-17")?;
/// let receipt = Payload::new(CodecId::BYTES, 0, b"receipt 1").into_envelope();
/// let done = Completion::new(receipt, ttl, None);
/// let resolve = ForceRequest::resolve(&id, token, done).even_if_live();
/// # let _ = (release, resolve);
/// # Ok::<(), retryproof_core::Error>(())
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
    /// The person or tenant whom the result of a resolve is about, if the store has sealed results
    /// (SEAL-3).
    pub(crate) subject: Option<SubjectName>,
}

/// What an operator does to a record.
#[derive(Debug, Clone)]
pub enum ForceAction {
    /// Makes a record in progress absent, so that the next acquire is granted immediately.
    Release,
    /// Completes a record in progress on behalf of its holder.
    Resolve {
        /// The owner id of the complete record. This id differs from the holder's id, so that a
        /// late completion by the holder is refused. [`ForceRequest::resolve`] derives the id from
        /// the request, so that a repeated resolve recognises its own result.
        by: OwnerId,
        /// What to store.
        done: Completion,
    },
    /// Makes a complete record absent, so that the work may run again.
    Forget,
    /// Replaces the value of a complete record with a tombstone. The answer is lost, but the work
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
    /// The record is complete, so no unfinished work is left to release or resolve. Nothing
    /// changed.
    Finished,
    /// The record was granted again, with this token. Nothing changed.
    AnotherToken(FencingToken),
    /// There is no record.
    Absent,
}

impl ForceRequest {
    /// Creates a request to make a record in progress absent.
    #[must_use]
    pub fn release(token: FencingToken) -> Self {
        Self::new(token, ForceAction::Release)
    }

    /// Creates a request to complete a record in progress. `id` is the identity of the record.
    ///
    /// The request's owner id is a hash of `id`, `token` and the value. If the answer to a resolve
    /// was lost, a second resolve with the same value therefore finds out whether the first one
    /// took effect, even from another process. The ttl and the fingerprint are not part of the
    /// hash: a second resolve that differs only in these two returns `Applied` and changes nothing.
    #[must_use]
    pub fn resolve(id: &Identity, token: FencingToken, done: Completion) -> Self {
        let by = resolver(id, token, &done.value);
        Self::new(token, ForceAction::Resolve { by, done })
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
        Self { token, action, even_if_live: false, subject: None }
    }

    /// Seals the result of a resolve under this subject, if the store has sealed results. Without a
    /// subject, the result is sealed under the one that the calls of the scope share (SEAL-3).
    #[must_use]
    pub fn about(mut self, subject: impl Into<Arc<str>>) -> Self {
        self.subject = Some(SubjectName(subject.into()));
        self
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

    /// Returns `None` if the request applies to the record `found`, which belongs to `owner`.
    /// Otherwise returns the answer for the unchanged record.
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
                // The same request completed the record in an earlier attempt, whose answer was
                // lost.
                ForceAction::Resolve { by, .. } if *by == owner => Some(Forced::Applied),
                ForceAction::Resolve { .. } | ForceAction::Release => Some(Forced::Finished),
                ForceAction::Forget | ForceAction::Erase => None,
            },
        }
    }
}

/// Returns the owner id of a resolve, 128 bits of a hash. A caller that can compute the id already
/// knows the result. The id owns only complete records, which no owner can change.
fn resolver(id: &Identity, token: FencingToken, value: &[u8]) -> OwnerId {
    let mut hash = Sha256::new();
    let (scope, key) = (id.scope().as_str().as_bytes(), id.key().expose().as_bytes());
    for part in [b"retryproof resolve 1", scope, key, &token.get().to_le_bytes(), value] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let mut owner = [0; 16];
    owner.copy_from_slice(&hash.finalize()[..16]);
    OwnerId::from_bytes(owner)
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
            ForceRequest::resolve(&Identity::of("force", "k").unwrap(), token, done),
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

    #[test]
    fn ops_3_only_the_same_resolve_has_the_same_owner() {
        let by = |scope: &'static str, key: &str, token, value: &[u8], ttl| {
            let done = Completion::new(value.to_vec().into(), Duration::from_secs(ttl), None);
            let id = Identity::of(scope, key).unwrap();
            match ForceRequest::resolve(&id, FencingToken::new(token), done).action {
                ForceAction::Resolve { by, .. } => by,
                other => panic!("expected a resolve, got {other:?}"),
            }
        };
        let first = by("pay", "k", 7, b"done", 1);
        assert_eq!(by("pay", "k", 7, b"done", 1), first);
        assert_eq!(by("pay", "k", 7, b"done", 2), first, "the ttl is not part of the result");
        for other in [
            by("pa", "yk", 7, b"done", 1),
            by("pay", "other", 7, b"done", 1),
            by("refund", "k", 7, b"done", 1),
            by("pay", "k", 8, b"done", 1),
            by("pay", "k", 7, b"done!", 1),
            by("pay", "k", 7, b"", 1),
        ] {
            assert_ne!(other, first);
        }
    }
}
