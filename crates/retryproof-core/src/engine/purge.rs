// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deletes expired records in bounded batches, every `purge.interval` (STO-4). If several processes
//! share a store, only the one that claims a round purges in it (STO-6).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::store_client::{StoreClient, in_time};
use crate::clock::Instant;
use crate::config::PurgeConfig;
use crate::error::{ErrorKind, Result};
use crate::observe::PurgeEvent;
use crate::store::IdempotencyStore;

/// The maximum number of records in one batch. It keeps a batch from holding a lock for long.
const BATCH: usize = 1_000;

/// The shortest time limit of a batch. A batch does more work than any other call, and no caller
/// waits for it (STO-5).
const BATCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The task that purges for as long as the engine exists. The first lease starts the task.
pub(super) struct PurgeTask {
    store: Weak<StoreClient>,
    interval: Duration,
    enabled: bool,
    claims: bool,
    running: AtomicBool,
    /// Whether the engine has warned that rounds cannot be claimed.
    warned: AtomicBool,
}

impl PurgeTask {
    pub(super) fn new(store: &Arc<StoreClient>, config: &PurgeConfig) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::downgrade(store),
            interval: config.interval,
            enabled: config.enabled,
            claims: config.claim,
            running: AtomicBool::new(false),
            warned: AtomicBool::new(false),
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
                    "expired records are never deleted, because the store does not delete them \
                     itself and was built without `with_purge()`"
                );
            }
            // Start no task. The flag is set only so that this check does not run again at every
            // later grant.
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
            sleep(lengthened(self.interval)).await;
            // The task holds only a weak reference to the store between rounds, so that it ends
            // after its engine is dropped.
            let Some(store) = self.store.upgrade() else { return };
            if self.claims && !self.may_purge(&store).await {
                continue;
            }
            if let Err(error) = purge(&store, self.interval).await {
                tracing::warn!(%error, "expired records could not be deleted; the purge will be \
                                        tried again after `purge.interval`");
            }
        }
    }
}

impl PurgeTask {
    /// Claims this round. Returns `true` if this process should purge, because it has the claim or
    /// because rounds cannot be claimed.
    async fn may_purge(&self, store: &StoreClient) -> bool {
        // The claim ends shortly before the next round. A process that runs alone can therefore
        // claim, and purge, in every round.
        let at_most = self.interval - self.interval / 10;
        let sent = store.now();
        let answer = in_time(store.operation_timeout(), store.shared().claim_purge(at_most)).await;
        store.called("claim_purge", sent, &answer);
        match answer {
            Ok(Some(false)) => {
                let now = store.now();
                // Another process has claimed this round. Its purge counts as the last purge.
                store.note_purge(now);
                let took = now.saturating_duration_since(sent);
                let event = PurgeEvent { deleted: 0, took, kept_up: true, left_to_another: true };
                store.observers.tell(|o| o.purged(event));
                false
            }
            Ok(_) => true,
            Err(error) => {
                // If the store is unavailable, the purge that follows fails and is reported, so do
                // not warn here.
                if error.kind() != ErrorKind::Unavailable
                    && !self.warned.swap(true, Ordering::Relaxed)
                {
                    tracing::warn!(
                        %error,
                        "the purge cannot be claimed, so each process deletes expired records, \
                         although one would be enough; check that the store's user may \
                         write the `_meta` table (logged once, STO-6)"
                    );
                }
                true
            }
        }
    }
}

/// Returns the pause before a round: `interval`, plus a random part of at most a tenth of it.
fn lengthened(interval: Duration) -> Duration {
    let share = getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX));
    interval + (interval / 10).mul_f64(share)
}

/// When dropped, allows the next lease to start the task again. A runtime that drops the task drops
/// this value too.
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
    let now = store.now();
    let took = now.saturating_duration_since(began);
    if ended.is_ok() {
        store.note_purge(now);
    }
    let kept_up = ended.is_ok() && took < interval;
    let event = PurgeEvent { deleted, took, kept_up, left_to_another: false };
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
                "deleting expired records takes longer than `purge.interval`: the purge is working \
                 off a backlog, or it cannot keep up; if this line recurs, look for long-running \
                 transactions or a slow disk on the database server"
            );
        }
        tokio::task::yield_now().await;
    }
}
