// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deletes expired records in bounded batches, every `purge.interval` (STO-4).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::store_client::{StoreClient, in_time};
use crate::clock::Instant;
use crate::config::PurgeConfig;
use crate::error::Result;
use crate::observe::PurgeEvent;
use crate::store::IdempotencyStore;

/// The maximum number of records in one batch, so that no batch holds a lock for long.
const BATCH: usize = 1_000;

/// A batch gets at least this much time, because a batch does more work than any other call, and no
/// caller waits for it (STO-5).
const BATCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The task that purges for as long as the engine exists. The first lease starts the task.
pub(super) struct PurgeTask {
    store: Weak<StoreClient>,
    interval: Duration,
    enabled: bool,
    running: AtomicBool,
}

impl PurgeTask {
    pub(super) fn new(store: &Arc<StoreClient>, config: &PurgeConfig) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::downgrade(store),
            interval: config.interval,
            enabled: config.enabled,
            running: AtomicBool::new(false),
        })
    }

    /// Starts the task unless it is already running.
    #[inline]
    pub(super) fn keep_running(self: &Arc<Self>, store: &StoreClient, runtime: &Handle) {
        if self.enabled && !self.running.load(Ordering::Relaxed) {
            self.start(store, runtime);
        }
    }

    #[cold]
    fn start(self: &Arc<Self>, store: &StoreClient, runtime: &Handle) {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if !store.shared().can_purge() {
            let profile = store.shared().profile();
            if !profile.reclaims && !WARNED.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    store = profile.name,
                    "expired records are never deleted: the store does not delete them itself, and \
                     was built without `with_purge()`"
                );
            }
            // No task is needed. The flag keeps later grants from repeating this check.
            self.running.store(true, Ordering::Release);
            return;
        }
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = RunningPurge(Arc::clone(self));
        drop(runtime.spawn(async move { running.0.run().await }));
    }

    async fn run(&self) {
        loop {
            sleep(self.interval).await;
            // Between rounds the task holds only a weak reference to the store, so that the task
            // ends once its engine is gone.
            let Some(store) = self.store.upgrade() else { return };
            if let Err(error) = purge(&store, self.interval).await {
                tracing::warn!(%error, "the purge failed; it will be retried after the next \
                                        interval");
            }
        }
    }
}

/// Allows the next lease to start the task again, even if the runtime dropped the running task.
struct RunningPurge(Arc<PurgeTask>);

impl Drop for RunningPurge {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

/// Purges until a batch is not full, and reports the round to the observers (RUN-8). Returns `None`
/// if the store cannot purge.
pub(super) async fn purge(store: &StoreClient, interval: Duration) -> Result<Option<usize>> {
    let (began, mut deleted) = (store.now(), 0);
    let ended = purge_batches(store, interval, began, &mut deleted).await;
    if let Ok(false) = ended {
        return Ok(None);
    }
    let took = store.now().saturating_duration_since(began);
    let event = PurgeEvent { deleted, took, kept_up: ended.is_ok() && took < interval };
    store.observers.tell(|o| o.purged(event));
    ended.map(|_| Some(deleted))
}

/// Purges until a batch is not full, and adds the number of deleted records to `deleted`. Returns
/// whether the store can purge. Warns when the purge takes longer than `interval`, and again each
/// time the elapsed time doubles.
async fn purge_batches(
    store: &StoreClient,
    interval: Duration,
    began: Instant,
    deleted: &mut usize,
) -> Result<bool> {
    let mut late = interval;
    let limit = store.operation_timeout().max(BATCH_TIMEOUT);
    loop {
        let sent = store.now();
        let answer = in_time(limit, store.shared().purge(BATCH)).await;
        if !matches!(answer, Ok(None)) {
            store.called("purge", sent, &answer);
        }
        let Some(batch) = answer.map_err(|error| error.during("purge"))? else {
            return Ok(false);
        };
        *deleted += batch;
        if batch < BATCH {
            return Ok(true);
        }
        let took = store.now().saturating_duration_since(began);
        if took >= late {
            late = took * 2;
            tracing::warn!(
                deleted = *deleted,
                after = ?took,
                "the purge is not keeping up with expiring records, or is working off a backlog; \
                 on a server, look for long-running transactions or a slow disk"
            );
        }
        tokio::task::yield_now().await;
    }
}
