// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KeyCache`]: the plain keys of a process, for a limited time (SEAL-4).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::seal::DataSubject;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::cipher::DataKey;
use crate::table::KeyId;

/// The maximum number of keys that a process keeps.
const MOST: usize = 10_000;
/// The shortest time between two sweeps for expired keys.
const PAUSE: Duration = Duration::from_secs(1);

/// The state of a key in the table at the time of the look-up.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) id: KeyId,
    /// `None` if the key was destroyed.
    pub(crate) key: Option<Arc<DataKey>>,
}

/// Keys that were looked up. An entry expires a fixed time after its look-up began. A task then
/// drops the entry, even if no call follows.
#[derive(Debug)]
pub(crate) struct KeyCache {
    keeps: Duration,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<KeyId, (Known, Instant)>,
    of_subject: HashMap<DataSubject, KeyId>,
    /// When all keys were last forgotten.
    forgotten: Option<Instant>,
    sweeper: Option<AbortHandle>,
}

impl KeyCache {
    pub(crate) fn new(keeps: Duration) -> Self {
        Self { keeps, entries: Mutex::default() }
    }

    pub(crate) fn by_id(&self, id: KeyId) -> Option<Known> {
        self.entries.lock().live(id, self.keeps)
    }

    pub(crate) fn of_subject(&self, subject: &DataSubject) -> Option<Known> {
        let entries = self.entries.lock();
        let id = *entries.of_subject.get(subject)?;
        entries.live(id, self.keeps)
    }

    /// Adds a key whose look-up began at `began`.
    pub(crate) fn add(
        self: &Arc<Self>,
        known: Known,
        subject: Option<&DataSubject>,
        began: Instant,
    ) {
        // Without a runtime, nothing would drop the key in time.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut entries = self.entries.lock();
        // Do not keep the result of a look-up that began before the keys were forgotten, because
        // that key may have been destroyed after it was read.
        let is_forgotten = entries.forgotten.is_some_and(|forgotten| began <= forgotten);
        if is_forgotten || began.elapsed() >= self.keeps {
            return;
        }
        if entries.by_id.len() >= MOST {
            entries.clear();
        }
        let id = known.id;
        // Do not overwrite the result of a look-up that began later, because it is more recent. For
        // example, it may have found that the key was destroyed.
        if entries.by_id.get(&id).is_none_or(|(_, other)| *other <= began) {
            entries.by_id.insert(id, (known, began));
        }
        if let Some(subject) = subject {
            entries.of_subject.insert(*subject, id);
        }
        if entries.sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
            entries.sweeper = Some(self.sweep_on(&runtime));
        }
    }

    /// Starts the task that drops expired keys. The task ends when no key is left.
    fn sweep_on(self: &Arc<Self>, runtime: &Handle) -> AbortHandle {
        let cache = Arc::downgrade(self);
        let sweeping = runtime.spawn(async move {
            while let Some(next) = cache.upgrade().and_then(|cache| cache.swept()) {
                sleep_until(next.max(Instant::now() + PAUSE)).await;
            }
        });
        sweeping.abort_handle()
    }

    /// Drops the expired keys, and returns the time at which the next key expires.
    fn swept(&self) -> Option<Instant> {
        let mut entries = self.entries.lock();
        let Entries { by_id, of_subject, sweeper, .. } = &mut *entries;
        by_id.retain(|_, (_, began)| began.elapsed() < self.keeps);
        of_subject.retain(|_, id| by_id.contains_key(id));
        let ends = by_id.values().filter_map(|(_, began)| began.checked_add(self.keeps));
        let next = ends.min();
        if next.is_none() {
            *sweeper = None;
        }
        next
    }
}

impl Entries {
    fn live(&self, id: KeyId, keeps: Duration) -> Option<Known> {
        let (known, began) = self.by_id.get(&id)?;
        (began.elapsed() < keeps).then(|| known.clone())
    }

    fn clear(&mut self) {
        self.by_id.clear();
        self.of_subject.clear();
    }
}

/// When dropped, forgets all keys, and prevents the look-ups that are running from adding keys.
/// This process therefore notices immediately that a key was destroyed.
pub(crate) struct ForgetsKeys<'a>(pub(crate) &'a KeyCache);

impl Drop for ForgetsKeys<'_> {
    fn drop(&mut self) {
        let mut entries = self.0.entries.lock();
        entries.clear();
        entries.forgotten = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use tokio::time::{advance, sleep};

    use super::*;

    const KEEPS: Duration = Duration::from_secs(60);

    fn known(id: u8) -> (Known, Weak<DataKey>) {
        let key = Arc::new(DataKey::random().unwrap());
        let weak = Arc::downgrade(&key);
        (Known { id: KeyId([id; 16]), key: Some(key) }, weak)
    }

    /// Expired keys are dropped, and thereby overwritten, even if no later call uses the cache.
    #[tokio::test(start_paused = true)]
    async fn seal_8_a_key_is_dropped_in_time() {
        let cache = Arc::new(KeyCache::new(KEEPS));
        for _ in 0..2 {
            let ((one, first), (two, second)) = (known(1), known(2));
            cache.add(one, None, Instant::now());
            advance(Duration::from_secs(20)).await;
            cache.add(two, None, Instant::now());
            sleep(Duration::from_secs(39)).await;
            assert!(first.upgrade().is_some() && cache.by_id(KeyId([1; 16])).is_some());
            sleep(Duration::from_secs(2)).await;
            assert!(first.upgrade().is_none() && second.upgrade().is_some());
            sleep(Duration::from_secs(20)).await;
            assert!(second.upgrade().is_none());
        }
        assert!(cache.entries.lock().sweeper.is_none(), "nothing is left to do");
    }

    #[tokio::test(start_paused = true)]
    async fn seal_8_without_a_cache_no_key_is_kept() {
        let cache = Arc::new(KeyCache::new(Duration::ZERO));
        let (known, key) = known(1);
        cache.add(known, None, Instant::now());
        assert!(key.upgrade().is_none());
    }
}
