// SPDX-License-Identifier: MIT OR Apache-2.0
//! The purge task: bounded batches, every `purge.interval` (STO-4).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Inner;
use crate::error::{Error, Result};
use crate::store::IdempotencyStore;

/// Most records of one batch, so that no batch holds a lock for long.
const BATCH: usize = 1_000;

/// How long a batch has at least: it is more work than any other call, and nobody waits for it
/// (STO-5).
const LEAST: Duration = Duration::from_secs(30);

impl Inner {
    /// Purges until a batch comes back short. Says so when that takes longer than the interval, and
    /// again after twice as long.
    pub(super) async fn purge(&self) -> Result<Option<usize>> {
        let mut gone = 0;
        let (began, mut late) = (self.now(), self.config.purge.interval);
        let bound = self.gate.operation_timeout().max(LEAST);
        loop {
            let purged = timeout(bound, self.store.purge(BATCH)).await.unwrap_or_else(|_| {
                let error = Error::unavailable("no answer in time");
                Err(error.with("after", format_args!("{bound:?}")).during("purge"))
            });
            match purged? {
                None => return Ok(None),
                Some(batch) => {
                    gone += batch;
                    if batch < BATCH {
                        return Ok(Some(gone));
                    }
                    let took = self.now().saturating_duration_since(began);
                    if took >= late {
                        late = took * 2;
                        tracing::warn!(
                            deleted = gone,
                            after = ?took,
                            "the purge does not keep up with the records that expire, or works \
                             off a backlog; on a server, look for transactions that are open for \
                             long, or for a slow disk"
                        );
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

/// Says that no task purges any more, also when the task is dropped with its runtime.
struct Purging(Weak<Inner>);

impl Drop for Purging {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            engine.purging.store(false, Ordering::Release);
        }
    }
}

pub(super) fn start(engine: &Arc<Inner>) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !engine.store.can_purge() {
        let profile = engine.store.profile();
        if !profile.reclaims && !WARNED.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                store = profile.name,
                "expired records are never deleted: the store reclaims none and was given \
                 without `with_purge()`"
            );
        }
        // Nothing to run: as if a task ran for ever.
        engine.purging.store(true, Ordering::Release);
        return;
    }
    if engine.purging.swap(true, Ordering::AcqRel) {
        return;
    }
    let interval = engine.config.purge.interval;
    let purging = Purging(Arc::downgrade(engine));
    engine.spawn(async move {
        loop {
            sleep(interval).await;
            // Only a weak hold between rounds: the task ends with its engine.
            let Some(engine) = purging.0.upgrade() else { return };
            if let Err(error) = engine.purge().await {
                tracing::warn!(%error, "the purge failed; it is tried again at the next interval");
            }
        }
    });
}
