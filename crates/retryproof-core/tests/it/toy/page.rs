// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store on the contract's page (`src/store/toy.md`), word for word.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use retryproof_core::clock::Instant;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, HolderNote, LiveLease, Peeked,
    StoreProfile,
};
use retryproof_core::{
    Blob, FencingToken, Fingerprint, IdempotencyStore, Identity, OwnerId, Result, StoredResult,
};

#[derive(Debug, Default)]
pub struct ToyStore(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    records: HashMap<Identity, Record>,
    last_token: u64,
}

#[derive(Debug)]
struct Record {
    owner: OwnerId,
    token: FencingToken,
    took_over: bool,     // whether it was granted by a takeover (ACQ-12)
    until: Instant,      // the end of the lease, or of the ttl once there is a value
    value: Option<Blob>, // `None` while in progress
    fingerprint: Option<Fingerprint>,
    note: Option<HolderNote>, // from the request that was granted (REC-2)
}

impl State {
    fn peek(&self, id: &Identity, now: Instant) -> Peeked {
        match self.records.get(id).filter(|record| record.until > now) {
            None => Peeked::Absent,
            Some(Record { value: None, token, until, note, .. }) => {
                Peeked::Busy(LiveLease::new(*until - now, *token).with_holder(note.clone()))
            }
            Some(Record { value: Some(value), fingerprint, note, .. }) => {
                let stored = StoredResult::new(value.clone(), *fingerprint);
                Peeked::Complete(stored.with_holder(note.clone()))
            }
        }
    }

    /// Returns the record if `owner` is working on it, even if its lease is over (CMP-2).
    fn running(&mut self, id: &Identity, owner: OwnerId) -> Option<&mut Record> {
        self.records.get_mut(id).filter(|record| record.owner == owner && record.value.is_none())
    }
}

impl ToyStore {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IdempotencyStore for ToyStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let (mut state, now) = (self.state(), Instant::now());
        let own = state.running(id, req.owner).map(|record| (record.token, record.took_over));
        let (token, took_over) = match (own, state.peek(id, now)) {
            (Some(granted), _) => granted, // the first answer was lost (ACQ-9)
            (None, Peeked::Complete(stored)) => return Ok(Acquired::Complete(stored)),
            (None, Peeked::Busy(lease)) => {
                let held = state.records.get(id).and_then(|record| record.fingerprint);
                let differs = req.differs_from(held.as_ref()); // (FP-6)
                return Ok(Acquired::Busy(lease.with_mismatch(differs)));
            }
            (None, Peeked::Absent) => {
                state.last_token += 1; // under the lock that grants (ACQ-10)
                let expired = state.records.get(id).is_some_and(|record| record.value.is_none());
                (FencingToken::new(state.last_token), expired)
            }
        };
        let AcquireRequest { owner, lease, fingerprint, holder: note, .. } = req.clone();
        let until = now + lease;
        let record = Record { owner, token, took_over, until, value: None, fingerprint, note };
        state.records.insert(id.clone(), record);
        Ok(Acquired::Granted(Grant::new(token, lease, took_over)))
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        Ok(self.state().peek(id, Instant::now()))
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        limit: Duration,
    ) -> Result<()> {
        let peeked = self.peek(id).await?;
        if matches!(peeked, Peeked::Busy(LiveLease { token, .. }) if token == seen) {
            tokio::time::sleep(limit.min(Duration::from_millis(50))).await; // a map has no notifications
        }
        Ok(())
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let mut state = self.state();
        let Some(record) = state.running(id, owner) else { return Ok(FencedWrite::NotOwner) };
        record.until = Instant::now() + lease;
        Ok(FencedWrite::Applied)
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        let mut state = self.state();
        if let Some(record) = state.running(id, owner) {
            record.value = Some(done.value.clone());
            record.fingerprint = done.fingerprint;
            record.until = Instant::now() + done.ttl; // the ttl runs from completion (CMP-6)
            return Ok(FencedWrite::Applied);
        }
        let done_before = state.records.get(id).is_some_and(|record| record.owner == owner);
        Ok(if done_before { FencedWrite::AlreadyApplied } else { FencedWrite::NotOwner })
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let mut state = self.state();
        if state.running(id, owner).is_some() {
            state.records.remove(id);
            return Ok(FencedWrite::Applied);
        }
        Ok(if state.records.contains_key(id) {
            FencedWrite::NotOwner
        } else {
            FencedWrite::AlreadyApplied
        })
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("toy")
    }
}
