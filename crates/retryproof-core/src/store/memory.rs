// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MemoryStore`]: records in this process, under one lock.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::blob::Blob;
use crate::clock::{Clock, Instant, SystemClock, wall_clock_micros};
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::owner::{FencingToken, OwnerId};
use crate::payload::StoredResult;
use crate::store::{
    AcquireRequest, Acquired, Completion, Fenced, Grant, IdempotencyStore, Purge, Standing, StoreProfile,
};

/// Keeps records in this process; they go with it.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

struct Inner {
    records: HashMap<Identity, Record>,
    last_token: u64,
}

struct Record {
    owner: OwnerId,
    token: u64,
    expires: Instant,
    purge_after: Instant,
    fingerprint: Option<Fingerprint>,
    value: Option<Blob>,
    wake: Arc<Notify>,
}

impl MemoryStore {
    /// An empty store on the host's monotonic clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store on an injected clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { clock, inner: Mutex::new(Inner { records: HashMap::new(), last_token: wall_clock_micros() }) }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("records", &self.inner.lock().records.len())
            .finish_non_exhaustive()
    }
}

impl IdempotencyStore for MemoryStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        inner.last_token += 1;
        let fresh = inner.last_token;
        let mut token = fresh;
        let mut took_over = false;
        let mut wake = None;
        if let Some(record) = inner.records.get(id) {
            let live = record.expires > now;
            match &record.value {
                Some(value) if live => {
                    return Ok(Acquired::Complete(StoredResult::new(value.clone(), record.fingerprint)));
                }
                None if record.owner == req.owner => {
                    token = record.token;
                    wake = Some(Arc::clone(&record.wake));
                }
                None if live => {
                    return Ok(Acquired::Busy {
                        remaining: record.expires - now,
                        token: FencingToken::new(record.token),
                    });
                }
                None => {
                    took_over = true;
                    record.wake.notify_waiters();
                }
                Some(_) => {}
            }
        }
        inner.records.insert(
            id.clone(),
            Record {
                owner: req.owner,
                token,
                expires: now + req.lease,
                purge_after: now + req.ttl,
                fingerprint: req.fingerprint,
                value: None,
                wake: wake.unwrap_or_default(),
            },
        );
        Ok(Acquired::Granted(Grant::new(FencingToken::new(token), req.lease, took_over)))
    }

    async fn look(&self, id: &Identity) -> Result<Standing> {
        let now = self.clock.now();
        let inner = self.inner.lock();
        Ok(match inner.records.get(id) {
            Some(record) if record.expires > now => match &record.value {
                Some(value) => Standing::Complete(StoredResult::new(value.clone(), record.fingerprint)),
                None => {
                    Standing::Busy { remaining: record.expires - now, token: FencingToken::new(record.token) }
                }
            },
            _ => Standing::Absent,
        })
    }

    async fn changed(&self, id: &Identity, seen: FencingToken, at_most: Duration) -> Result<()> {
        let wake = {
            let now = self.clock.now();
            let inner = self.inner.lock();
            match inner.records.get(id) {
                Some(r) if r.expires > now && r.value.is_none() && r.token == seen.get() => {
                    Arc::clone(&r.wake)
                }
                _ => return Ok(()),
            }
        };
        let mut notified = std::pin::pin!(wake.notified());
        notified.as_mut().enable();
        // Enabled now: look again, for a change between the first look and here.
        if !matches!(self.look(id).await?, Standing::Busy { token, .. } if token == seen) {
            return Ok(());
        }
        let _ = tokio::time::timeout(at_most, notified).await;
        Ok(())
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<Fenced> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        Ok(match inner.records.get_mut(id) {
            Some(record) if record.owner == owner && record.value.is_none() => {
                record.expires = now + lease;
                Fenced::Done
            }
            _ => Fenced::Lost,
        })
    }

    async fn complete(&self, id: &Identity, owner: OwnerId, done: &Completion) -> Result<Fenced> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        Ok(match inner.records.get_mut(id) {
            Some(record) if record.owner == owner => {
                if record.value.is_some() {
                    return Ok(Fenced::AlreadyDone);
                }
                record.value = Some(done.value.clone());
                record.fingerprint = done.fingerprint;
                record.expires = now + done.ttl;
                record.purge_after = record.expires;
                record.wake.notify_waiters();
                Fenced::Done
            }
            _ => Fenced::Lost,
        })
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<Fenced> {
        let mut inner = self.inner.lock();
        Ok(match inner.records.get(id) {
            None => Fenced::AlreadyDone,
            Some(record) if record.owner == owner && record.value.is_none() => {
                record.wake.notify_waiters();
                inner.records.remove(id);
                Fenced::Done
            }
            Some(_) => Fenced::Lost,
        })
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("memory").with_reclaim()
    }
}

impl Purge for MemoryStore {
    async fn purge(&self, limit: usize) -> Result<usize> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let gone: Vec<_> = inner
            .records
            .iter()
            .filter(|(_, r)| r.expires <= now && r.purge_after <= now)
            .map(|(id, _)| id.clone())
            .take(limit)
            .collect();
        for id in &gone {
            inner.records.remove(id);
        }
        Ok(gone.len())
    }
}
