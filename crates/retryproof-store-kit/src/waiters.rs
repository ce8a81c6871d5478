// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`WaiterRegistry`] tracks which calls in this process wait for which record.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The waiters of one store in this process, by record (ACQ-4). `K` is the
/// [`Identity`](retryproof_core::Identity), or a hash of it: a collision only causes an unnecessary
/// wake-up.
///
/// A waiter subscribes, *then* reads the record, then sleeps. A writer notifies *after* its commit.
/// The registry's lock orders subscriptions and notifications: either the writer finds the waiter,
/// or the waiter reads what was committed. The registry therefore loses no change between the read
/// and the sleep.
pub struct WaiterRegistry<K> {
    records: Mutex<HashMap<K, RecordWaiters>>,
}

/// The waiters of one record.
#[derive(Default)]
struct RecordWaiters {
    woken: Arc<Notify>,
    count: usize,
}

/// The subscription of one waiter to a record. Dropping the value ends the subscription.
pub struct Subscription<'a, K: Eq + Hash> {
    registry: &'a WaiterRegistry<K>,
    key: K,
    woken: Arc<Notify>,
}

impl<K> WaiterRegistry<K> {
    /// Creates a registry without waiters.
    #[must_use]
    pub fn new() -> Self {
        Self { records: Mutex::default() }
    }

    /// Returns whether no call is waiting. The answer can miss a call that is just subscribing.
    /// This is harmless, because that call reads its record afterwards.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.lock().is_empty()
    }

    /// Wakes all waiters, for example after notifications from the server may have been missed.
    pub fn notify_all(&self) {
        self.records.lock().values().for_each(|waiters| waiters.woken.notify_waiters());
    }
}

impl<K: Clone + Eq + Hash> WaiterRegistry<K> {
    /// Adds a waiter for a record. Call this before reading the record.
    #[must_use]
    pub fn subscribe(&self, key: K) -> Subscription<'_, K> {
        let mut records = self.records.lock();
        let waiters = records.entry(key.clone()).or_default();
        waiters.count += 1;
        Subscription { registry: self, key, woken: Arc::clone(&waiters.woken) }
    }

    /// Wakes the waiters of a record. Call this after the commit.
    pub fn notify(&self, key: &K) {
        self.notify_each(std::iter::once(key));
    }

    /// Wakes the waiters of several records that changed in one commit.
    pub fn notify_each<'k>(&self, keys: impl IntoIterator<Item = &'k K>)
    where
        K: 'k,
    {
        let records = self.records.lock();
        if records.is_empty() {
            return;
        }
        for waiters in keys.into_iter().filter_map(|key| records.get(key)) {
            waiters.woken.notify_waiters();
        }
    }
}

impl<K: Eq + Hash> Subscription<'_, K> {
    /// Returns the key of the record.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Returns the [`Notify`] that wakes this waiter when the record may have changed.
    /// [`notify_waiters`](Notify::notify_waiters) stores no permit, so enable the
    /// [`Notified`](tokio::sync::futures::Notified) before the read.
    /// [`wait_for_change`](crate::wait_for_change) does so.
    #[must_use]
    pub fn woken(&self) -> &Notify {
        &self.woken
    }
}

impl<K: Eq + Hash> Drop for Subscription<'_, K> {
    fn drop(&mut self) {
        let mut records = self.registry.records.lock();
        if let Some(waiters) = records.get_mut(&self.key) {
            waiters.count -= 1;
            if waiters.count == 0 {
                records.remove(&self.key);
            }
        }
    }
}

impl<K> Default for WaiterRegistry<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> fmt::Debug for WaiterRegistry<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaiterRegistry").field("records", &self.records.lock().len()).finish()
    }
}

impl<K: Eq + Hash> fmt::Debug for Subscription<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acq_4_a_record_is_forgotten_with_its_last_waiter() {
        let registry = WaiterRegistry::new();
        let (first, second) = (registry.subscribe(7), registry.subscribe(7));
        let other = registry.subscribe(8);
        assert_eq!((*second.key(), registry.records.lock().len()), (7, 2));
        drop(first);
        assert_eq!(registry.records.lock().len(), 2);
        drop(second);
        assert_eq!(registry.records.lock().len(), 1);
        drop(other);
        assert!(registry.is_empty());
        // Without waiters, both calls have no effect.
        registry.notify(&7);
        registry.notify_all();
    }

    #[tokio::test]
    async fn acq_4_only_the_waiters_of_the_record_are_woken() {
        let registry = WaiterRegistry::new();
        let subscriptions = [7, 7, 8].map(|key| registry.subscribe(key));
        let mut waits = subscriptions.each_ref().map(|one| Box::pin(one.woken().notified()));
        for wait in &mut waits {
            wait.as_mut().enable();
        }
        registry.notify(&7);
        assert_eq!(waits.each_mut().map(|wait| wait.as_mut().enable()), [true, true, false]);
        registry.notify_all();
        assert!(waits[2].as_mut().enable());
    }
}
