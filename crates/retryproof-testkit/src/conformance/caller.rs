// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers for the cases: callers with one owner ID each, and assertions that print an unexpected
//! answer.

use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, HolderNote, LiveLease, Peeked,
    SharedStore,
};
use retryproof_core::{
    ErrorKind, FencingToken, Fingerprint, IdempotencyStore, Identity, OwnerId, StoredResult,
};

use crate::subject::Subject;
pub(super) use crate::values::{DAY, LONG, MS, body, envelope, fingerprint};

/// How long a waiter may sleep past its next poll before its wake-up counts as lost. The limit is
/// long enough for a loaded machine.
const LATE: Duration = Duration::from_secs(5);
/// How many times a case repeats a write while the store is unavailable. It waits 20 ms before each
/// repetition.
const REPEATS: u32 = 500;
/// The time limit of a wait that a wake-up should end.
pub(super) const ASLEEP: Duration = Duration::from_secs(60);

impl Subject {
    /// Creates a caller of `id` with a new owner ID.
    pub(super) fn caller(&self, id: &Identity) -> StoreCaller {
        StoreCaller::new(self.store(), id)
    }

    /// Returns how long a waiter may sleep past its wake-up before the wake-up counts as lost
    /// (ACQ-4).
    pub(super) fn woken_within(&self) -> Duration {
        self.store().profile().max_poll + LATE
    }

    /// Returns `duration`, or the next longer lease or ttl that the store can keep.
    pub(super) fn kept(&self, duration: Duration) -> Duration {
        kept(self.store(), duration)
    }

    /// Lets more time pass than a lease or a ttl of length `brief` lasts.
    pub(super) async fn outlast(&self, brief: Duration) {
        self.pass(self.kept(brief) + 50 * MS).await;
    }

    /// Returns a short duration for a lease or a ttl that a case lets run out. On the host's clock,
    /// this time may be over before the next line of the case runs.
    pub(super) fn short(&self) -> Duration {
        self.kept(if self.is_exact() { Duration::from_secs(1) } else { 30 * MS })
    }

    /// Waits until a lease or a ttl of length `over` has ended according to the store's clock. The
    /// lease or the ttl must have begun already.
    pub(super) async fn expire(&self, id: &Identity, over: Duration) {
        self.pass(self.kept(over)).await;
        if self.is_exact() {
            return;
        }
        let stranger = self.caller(id);
        for _ in 0..10_000 {
            if matches!(stranger.peek().await, Peeked::Absent) {
                return;
            }
            tokio::time::sleep(MS).await;
        }
        panic!("a record that should end after {over:?} still exists {:?} later", 10_000 * MS);
    }
}

fn kept(store: &SharedStore, duration: Duration) -> Duration {
    let profile = store.profile();
    profile.round_up(duration.max(profile.min_duration))
}

/// Lets the lease of one caller run out and another caller take over. Returns both callers, and the
/// token of the takeover.
pub(super) async fn taken_over(
    s: &Subject,
    id: &Identity,
) -> (StoreCaller, StoreCaller, FencingToken) {
    let (zombie, taker) = (s.caller(id), s.caller(id));
    granted(zombie.acquire(s.short()).await);
    s.expire(id, s.short()).await;
    let token = granted(taker.acquire(LONG).await).token;
    (zombie, taker, token)
}

/// One caller: an owner ID and the identity that it acquires. A lease or a ttl that is too short
/// for the store is replaced by the next longer one that the store can keep.
#[derive(Debug, Clone)]
pub(super) struct StoreCaller {
    pub(super) store: SharedStore,
    pub(super) id: Identity,
    pub(super) owner: OwnerId,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) ttl: Duration,
    pub(super) note: Option<HolderNote>,
    pub(super) compares_in_flight: bool,
}

impl StoreCaller {
    pub(super) fn new(store: &SharedStore, id: &Identity) -> Self {
        Self {
            store: store.clone(),
            id: id.clone(),
            owner: OwnerId::new(),
            fingerprint: None,
            ttl: DAY,
            note: None,
            compares_in_flight: false,
        }
    }

    pub(super) fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = kept(&self.store, ttl);
        self
    }

    pub(super) fn with_fingerprint(mut self, byte: u8) -> Self {
        self.fingerprint = Some(fingerprint(byte));
        self
    }

    /// Returns the same caller, but with requests that compare fingerprints while the holder runs
    /// (FP-6).
    pub(super) fn comparing(mut self) -> Self {
        self.compares_in_flight = true;
        self
    }

    /// Returns the same caller with a note that contains `label`.
    pub(super) fn called(mut self, label: &str) -> Self {
        self.note = Some(HolderNote::new(self.owner, LONG, None, label));
        self
    }

    /// Returns the same caller without a note.
    pub(super) fn without_note(mut self) -> Self {
        self.note = None;
        self
    }

    /// Returns the same caller on another handle of the store.
    pub(super) fn on(&self, store: &SharedStore) -> Self {
        Self { store: store.clone(), ..self.clone() }
    }

    pub(super) fn request(&self, lease: Duration) -> AcquireRequest {
        let request = AcquireRequest::new(self.owner, kept(&self.store, lease), self.ttl)
            .with_fingerprint(self.fingerprint)
            .with_holder(self.note.clone());
        if self.compares_in_flight { request.comparing_in_flight() } else { request }
    }

    pub(super) async fn acquire(&self, lease: Duration) -> Acquired {
        let request = self.request(lease);
        repeated(|| self.store.acquire(&self.id, &request))
            .await
            .expect("the acquire should succeed")
    }

    pub(super) async fn peek(&self) -> Peeked {
        self.store.peek(&self.id).await.expect("the peek should succeed")
    }

    pub(super) async fn wait_for_change(&self, seen: FencingToken, at_most: Duration) {
        self.store.wait_for_change(&self.id, seen, at_most).await.expect("the wait should succeed");
    }

    pub(super) async fn extend(&self, lease: Duration) -> FencedWrite {
        let lease = kept(&self.store, lease);
        repeated(|| self.store.extend(&self.id, self.owner, lease))
            .await
            .expect("the extend should succeed")
    }

    pub(super) fn completion(&self, body: &[u8]) -> Completion {
        Completion::new(envelope(body), self.ttl, self.fingerprint)
    }

    pub(super) async fn complete(&self, body: &[u8]) -> FencedWrite {
        self.complete_with(&self.completion(body)).await
    }

    pub(super) async fn complete_with(&self, done: &Completion) -> FencedWrite {
        repeated(|| self.store.complete(&self.id, self.owner, done))
            .await
            .expect("the completion should succeed")
    }

    pub(super) async fn release(&self) -> FencedWrite {
        repeated(|| self.store.release(&self.id, self.owner))
            .await
            .expect("the release should succeed")
    }
}

/// Repeats a write while the store is unavailable, as the engine does. Even a correct store may
/// give up if a disk stalls while another caller has the row locked. A store that stays unavailable
/// fails the case.
async fn repeated<T, F>(mut call: impl FnMut() -> F) -> retryproof_core::Result<T>
where
    F: Future<Output = retryproof_core::Result<T>>,
{
    for _ in 0..REPEATS {
        match call().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(20 * MS).await;
            }
            answer => return answer,
        }
    }
    call().await
}

#[track_caller]
pub(super) fn granted(answer: Acquired) -> Grant {
    match answer {
        Acquired::Granted(grant) => grant,
        other => panic!("expected a grant, got {other:?}"),
    }
}

#[track_caller]
pub(super) fn busy(answer: Acquired) -> (Duration, FencingToken) {
    match answer {
        Acquired::Busy(LiveLease { remaining, token, .. }) => (remaining, token),
        other => panic!("expected busy, got {other:?}"),
    }
}

#[track_caller]
pub(super) fn completed(answer: Acquired) -> StoredResult {
    match answer {
        Acquired::Complete(stored) => stored,
        other => panic!("expected a result, got {other:?}"),
    }
}

#[track_caller]
pub(super) fn is_absent(standing: Peeked) {
    assert!(matches!(standing, Peeked::Absent), "expected no record, got {standing:?}");
}

#[track_caller]
pub(super) fn is_busy(standing: Peeked) -> (Duration, FencingToken) {
    match standing {
        Peeked::Busy(LiveLease { remaining, token, .. }) => (remaining, token),
        other => panic!("expected busy, got {other:?}"),
    }
}

#[track_caller]
pub(super) fn is_complete(standing: Peeked) -> StoredResult {
    match standing {
        Peeked::Complete(stored) => stored,
        other => panic!("expected a result, got {other:?}"),
    }
}
