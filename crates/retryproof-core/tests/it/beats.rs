// SPDX-License-Identifier: MIT OR Apache-2.0
//! If a lease is ended while a heartbeat is in progress, the end waits for the heartbeat, but cuts
//! it off if the store does not answer.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::observe::{Loss, Observer, StoreCallEvent};
use retryproof_core::store::{Completion, FencedWrite, StoreProfile};
use retryproof_core::{
    Acquisition, ErrorKind, IdempotencyConfig, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore, Identity, OwnerId, Result, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{FaultStore, Faults, Outage};
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(1);

fn ctx() -> IdempotencyContext {
    IdempotencyContext::builder("beats", "k").lease(LEASE).build().unwrap()
}

/// A store that needs 60 ms for a beat, and records the order of its calls. The end of a lease
/// waits for a beat for longer than that.
#[derive(Debug, Clone, Default)]
struct SlowBeats {
    inner: Arc<MemoryStore>,
    log: Arc<Mutex<Vec<&'static str>>>,
    immediate: bool,
}

impl IdempotencyStore for SlowBeats {
    retryproof_testkit::forward!(inner: acquire, peek, wait_for_change);

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.log.lock().push("beat begins");
        sleep(60 * MS).await;
        self.log.lock().push("beat ends");
        self.inner.extend(id, owner, lease).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.log.lock().push("complete");
        self.inner.complete(id, owner, done).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.log.lock().push("release");
        self.inner.release(id, owner).await
    }

    fn profile(&self) -> StoreProfile {
        let profile = StoreProfile::new("slow beats");
        if self.immediate { profile.with_immediate() } else { profile }
    }
}

#[tokio::test(start_paused = true)]
async fn run_3_a_completion_and_a_release_wait_for_the_beat_under_way() {
    for immediate in [false, true] {
        for (result, end) in [(Ok(1), "complete"), (Err("declined"), "release")] {
            let store = SlowBeats { immediate, ..SlowBeats::default() };
            let engine = IdempotencyEngine::new(SharedStore::new(store.clone()));
            let action = || async move {
                // The beat is sent after 500 ms and takes 60 ms, so it is in flight when the action
                // ends.
                sleep(520 * MS).await;
                result
            };
            assert_eq!(engine.execute(ctx(), action).await.is_ok(), result.is_ok());
            let log = store.log.lock().clone();
            assert_eq!(log, ["beat begins", "beat ends", end], "immediate: {immediate}");
        }
    }
}

/// Records how long each failed beat took.
#[derive(Debug, Default)]
struct FailedBeats(Mutex<Vec<Duration>>);

impl Observer for FailedBeats {
    fn store_called(&self, event: StoreCallEvent) {
        if event.operation == "extend" && event.error == Some(ErrorKind::Unavailable) {
            self.0.lock().push(event.took);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn run_1_sto_5_each_unanswered_beat_is_cut_off_below_a_quarter_of_the_lease() {
    for (operation_timeout, cut_off) in [(5_000 * MS, 240 * MS), (150 * MS, 150 * MS)] {
        let (faults, failed) = (Faults::none(), Arc::<FailedBeats>::default());
        let mut config = IdempotencyConfig::default();
        config.operation_timeout = operation_timeout;
        let store = SharedStore::new(FaultStore::new(MemoryStore::new(), faults.clone()));
        let engine = IdempotencyEngine::builder(store)
            .config(config)
            .observer(Arc::clone(&failed))
            .build()
            .unwrap();
        let Acquisition::Granted(held) = engine.try_acquire(&ctx()).await.unwrap() else {
            panic!("granted")
        };
        faults.begin_outage(Outage::Swallow);
        assert_eq!(held.lease().lost().await, Loss::Expired);
        let failed = failed.0.lock().clone();
        // The first beats are sent after 500, 600 and 700 ms.
        assert!(failed.len() >= 3, "{failed:?}");
        let in_time = |took: &Duration| (cut_off..cut_off + 5 * MS).contains(took);
        assert!(failed.iter().all(in_time), "cut off after {cut_off:?}: {failed:?}");
    }
}
