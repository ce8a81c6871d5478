// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work that is measured, and who does it: the memory store, a bare map as the floor, dashmap as a peer.
//!
//! The others do the least that an idempotency store could: keyed by scope and key, an owner and a time checked on every
//! call, the value shared. They are not bounded, reclaim nothing, wake nobody and draw no tokens. An [`Identity`] carries
//! its hash with it; they get the two halves, which do not.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use retryproof::store::{AcquireRequest, Acquired, Completion, Fenced};
use retryproof::{Blob, IdempotencyStore, Identity, Key, MemoryStore, OwnerId, Scope};

use crate::compare::now;

pub(super) const DAY: Duration = Duration::from_secs(86_400);
pub(super) const VALUE: usize = 200;
const SCOPE: &str = "payments.created";

/// What everybody is asked for: made once, because making it is the caller's business.
pub(super) struct Ask {
    pub(super) request: AcquireRequest,
    pub(super) done: Completion,
}

impl Ask {
    /// Keeps [`VALUE`] bytes for `ttl` from the completion.
    pub(super) fn new(ttl: Duration) -> Self {
        let request = AcquireRequest::new(OwnerId::new(), DAY, ttl);
        Self { request, done: Completion::new(Blob::from(vec![7; VALUE]), ttl, None) }
    }
}

/// What one of the contenders does.
pub(super) trait Keeper: Sync {
    /// A first execution: grants and completes. `false` when there was a record.
    fn execute(&self, item: &Item, ask: &Ask) -> bool;
    /// A duplicate: takes the stored value and lets it go again. `false` when there is none.
    fn replay(&self, item: &Item, ask: &Ask) -> bool;
}

/// A scope of 16 bytes and a key of 36.
pub(super) struct Item {
    pub(super) id: Identity,
    pub(super) pair: Pair,
}

/// What the peers are keyed by.
pub(super) type Pair = (Scope, Key);

pub(super) fn item(n: u64) -> Item {
    // The scope is one that a program made once: no literal, so it counts references as a configured one does.
    thread_local!(static MADE: Scope = Scope::new(SCOPE).expect("a valid scope"));
    let scope = MADE.with(Scope::clone);
    let key = Key::new(format!("{n:036}")).expect("a valid key");
    Item { id: Identity::new(scope.clone(), key.clone()), pair: (scope, key) }
}

pub(super) fn items(range: std::ops::Range<u64>) -> Vec<Item> {
    range.map(item).collect()
}

impl Keeper for MemoryStore {
    fn execute(&self, item: &Item, ask: &Ask) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let granted = pin!(self.acquire(&item.id, &ask.request)).poll(&mut context);
        matches!(granted, Poll::Ready(Ok(Acquired::Granted(_)))) && {
            let fenced = pin!(self.complete(&item.id, ask.request.owner, &ask.done)).poll(&mut context);
            matches!(fenced, Poll::Ready(Ok(Fenced::Done)))
        }
    }

    fn replay(&self, item: &Item, ask: &Ask) -> bool {
        let answer = pin!(self.acquire(&item.id, &ask.request)).poll(&mut Context::from_waker(Waker::noop()));
        matches!(black_box(&answer), Poll::Ready(Ok(Acquired::Complete(_))))
    }
}

/// What the peers keep.
pub(super) struct Kept {
    owner: OwnerId,
    expires: Instant,
    value: Option<Blob>,
}

impl Kept {
    fn granted(ask: &Ask) -> Self {
        Self { owner: ask.request.owner, expires: now() + ask.request.lease, value: None }
    }

    fn live(&self) -> bool {
        self.expires > now()
    }

    fn complete(&mut self, ask: &Ask) -> bool {
        if self.owner != ask.request.owner || self.value.is_some() {
            return false;
        }
        self.value = Some(Blob::from(ask.done.value.to_vec()));
        self.expires = now() + ask.done.ttl;
        true
    }

    fn replay(&self) -> Option<Blob> {
        self.value.as_ref().filter(|_| self.live()).cloned()
    }
}

/// The floor: one map behind one mutex.
pub(super) struct Floor(pub(super) Mutex<HashMap<Pair, Kept, foldhash::quality::RandomState>>);

impl Keeper for Floor {
    fn execute(&self, item: &Item, ask: &Ask) -> bool {
        let Ok(mut map) = self.0.lock() else { return false };
        if map.get(&item.pair).is_some_and(Kept::live) {
            return false;
        }
        map.insert(item.pair.clone(), Kept::granted(ask));
        drop(map);
        let Ok(mut map) = self.0.lock() else { return false };
        map.get_mut(&item.pair).is_some_and(|kept| kept.complete(ask))
    }

    fn replay(&self, item: &Item, _ask: &Ask) -> bool {
        let Ok(map) = self.0.lock() else { return false };
        let value = map.get(&item.pair).and_then(Kept::replay);
        drop(map);
        black_box(&value).is_some()
    }
}

impl<S: BuildHasher + Clone + Send + Sync> Keeper for DashMap<Pair, Kept, S> {
    fn execute(&self, item: &Item, ask: &Ask) -> bool {
        use dashmap::Entry;

        match self.entry(item.pair.clone()) {
            Entry::Occupied(kept) if kept.get().live() => return false,
            Entry::Occupied(mut kept) => drop(kept.insert(Kept::granted(ask))),
            Entry::Vacant(place) => drop(place.insert(Kept::granted(ask))),
        }
        self.get_mut(&item.pair).is_some_and(|mut kept| kept.complete(ask))
    }

    fn replay(&self, item: &Item, _ask: &Ask) -> bool {
        let value = self.get(&item.pair).and_then(|kept| kept.replay());
        black_box(&value).is_some()
    }
}
