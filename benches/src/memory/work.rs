// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work that is measured, and who does it: the memory store, a bare map as the floor, dashmap as a peer.
//!
//! The others do the least that an idempotency store could: keyed by identity, an owner and a time checked on every
//! call, the value shared. They are not bounded, reclaim nothing, wake nobody and draw no tokens.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use retryproof_core::store::{AcquireRequest, Acquired, Completion, Fenced};
use retryproof_core::{Blob, IdempotencyStore, Identity, MemoryStore, OwnerId, Scope};

use crate::compare::now;

pub(super) const DAY: Duration = Duration::from_secs(86_400);
pub(super) const VALUE: usize = 200;
const SCOPE: &str = "payments.created";

/// What one of the contenders does. `ttl` counts from the completion.
pub(super) trait Keeper: Sync {
    /// A first execution: grants and completes. `false` when there was a record.
    fn execute(&self, id: &Identity, owner: OwnerId, value: &Blob, ttl: Duration) -> bool;
    /// A duplicate: the length of the stored value.
    fn replay(&self, id: &Identity, owner: OwnerId) -> Option<usize>;
}

/// A scope of 16 bytes and a key of 36.
pub(super) fn identity(n: u64) -> Identity {
    // The scope is one that a program made once: no literal, so it counts references as a configured one does.
    thread_local!(static MADE: Scope = Scope::new(SCOPE).expect("a valid scope"));
    MADE.with(|scope| Identity::of(scope, format!("{n:036}")).expect("a valid key"))
}

pub(super) fn identities(range: std::ops::Range<u64>) -> Vec<Identity> {
    range.map(identity).collect()
}

/// A store call that never waits.
pub(super) fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a memory store answers at once"),
    }
}

impl Keeper for MemoryStore {
    fn execute(&self, id: &Identity, owner: OwnerId, value: &Blob, ttl: Duration) -> bool {
        let request = AcquireRequest::new(owner, DAY, ttl);
        if !matches!(ready(self.acquire(id, &request)), Ok(Acquired::Granted(_))) {
            return false;
        }
        let done = Completion::new(value.clone(), ttl, None);
        matches!(ready(self.complete(id, owner, &done)), Ok(Fenced::Done))
    }

    fn replay(&self, id: &Identity, owner: OwnerId) -> Option<usize> {
        match ready(self.acquire(id, &AcquireRequest::new(owner, DAY, DAY))) {
            Ok(Acquired::Complete(result)) => Some(std::hint::black_box(result).fingerprint().map_or(VALUE, |_| 0)),
            _ => None,
        }
    }
}

/// What the peers keep.
pub(super) struct Kept {
    owner: OwnerId,
    expires: Instant,
    value: Option<Blob>,
}

impl Kept {
    fn granted(owner: OwnerId) -> Self {
        Self { owner, expires: now() + DAY, value: None }
    }

    fn live(&self) -> bool {
        self.expires > now()
    }

    fn complete(&mut self, owner: OwnerId, value: &Blob, ttl: Duration) -> bool {
        if self.owner != owner || self.value.is_some() {
            return false;
        }
        self.value = Some(Blob::from(value.to_vec()));
        self.expires = now() + ttl;
        true
    }

    fn replay(&self) -> Option<usize> {
        let value = self.value.as_ref().filter(|_| self.live())?;
        Some(std::hint::black_box(value.clone()).len())
    }
}

/// The floor: one map behind one mutex.
pub(super) struct Floor(pub(super) Mutex<HashMap<Identity, Kept, foldhash::quality::RandomState>>);

impl Keeper for Floor {
    fn execute(&self, id: &Identity, owner: OwnerId, value: &Blob, ttl: Duration) -> bool {
        let Ok(mut map) = self.0.lock() else { return false };
        if map.get(id).is_some_and(Kept::live) {
            return false;
        }
        map.insert(id.clone(), Kept::granted(owner));
        drop(map);
        let Ok(mut map) = self.0.lock() else { return false };
        map.get_mut(id).is_some_and(|kept| kept.complete(owner, value, ttl))
    }

    fn replay(&self, id: &Identity, _owner: OwnerId) -> Option<usize> {
        self.0.lock().ok()?.get(id)?.replay()
    }
}

impl<S: BuildHasher + Clone + Send + Sync> Keeper for DashMap<Identity, Kept, S> {
    fn execute(&self, id: &Identity, owner: OwnerId, value: &Blob, ttl: Duration) -> bool {
        use dashmap::Entry;

        match self.entry(id.clone()) {
            Entry::Occupied(kept) if kept.get().live() => return false,
            Entry::Occupied(mut kept) => drop(kept.insert(Kept::granted(owner))),
            Entry::Vacant(place) => drop(place.insert(Kept::granted(owner))),
        }
        self.get_mut(id).is_some_and(|mut kept| kept.complete(owner, value, ttl))
    }

    fn replay(&self, id: &Identity, _owner: OwnerId) -> Option<usize> {
        self.get(id)?.replay()
    }
}
