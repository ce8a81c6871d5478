// SPDX-License-Identifier: MIT OR Apache-2.0
//! A slow store: heartbeats are cut off in time, the holder is notified, and outcomes stay true.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use retryproof_core::store::SharedStore;
use retryproof_core::{IdempotencyEngine, Outcome};
use retryproof_memory::MemoryStore;
use retryproof_testkit::SlowStore;
use tokio::time::sleep;

use super::{Does, NOW};
use super::{LEASE, MS, call, ctx};

/// Creates an engine on a distant store: a call needs half of `delay` to reach it, and the answer
/// needs the other half.
fn engine(store: &SharedStore, delay: std::time::Duration) -> IdempotencyEngine {
    IdempotencyEngine::new(SharedStore::new(SlowStore::new(store.clone(), delay / 2, delay / 2)))
}

#[tokio::test(start_paused = true)]
async fn run_1_a_store_a_fifth_of_a_lease_away_keeps_the_lease() {
    for percent in [1, 5, 10, 20] {
        let store = SharedStore::from(MemoryStore::new());
        let engine = engine(&store, LEASE * percent / 100);
        let runs = Arc::<AtomicU32>::default();
        let waiting = async {
            sleep(LEASE / 2).await;
            call(&engine, &runs, ctx("k", 20 * LEASE), NOW).await
        };
        let holding = call(&engine, &runs, ctx("k", LEASE), Does::Succeeds(5 * LEASE));
        let (holder, waiter) = tokio::join!(holding, waiting);
        assert!(holder.is_executed(), "{percent} %: {holder:?}");
        assert!(waiter.is_replayed(), "{percent} %: {waiter:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_2_a_store_further_away_than_a_lease_tells_the_holder_and_keeps_outcomes_true() {
    for percent in [30, 50, 100, 200] {
        let delay = LEASE * percent / 100;
        let store = SharedStore::from(MemoryStore::new());
        let engine = engine(&store, delay);
        let told = engine
            .execute_with(ctx("k", LEASE), |lease| async move {
                let loss = tokio::time::timeout(5 * LEASE, lease.lost()).await;
                Ok::<_, &str>(loss.is_ok())
            })
            .await
            .unwrap();
        assert_eq!(
            told,
            Outcome::Executed(true),
            "{percent} %: no takeover, so the completion counts"
        );

        // If a rival with a fast store takes over, the slow holder is fenced, and its call returns
        // the rival's result.
        let rival = IdempotencyEngine::new(store.clone());
        let runs = Arc::<AtomicU32>::default();
        let rivalling = async {
            sleep(delay + MS).await;
            call(&rival, &runs, ctx("r", 20 * LEASE), NOW).await
        };
        let holding = call(&engine, &runs, ctx("r", 20 * LEASE), Does::Succeeds(8 * LEASE));
        let (holder, rival) = tokio::join!(holding, rivalling);
        holder.is_true("slow");
        rival.is_true("rival");
        assert_eq!(holder.value(), rival.value(), "{percent} %: {holder:?} {rival:?}");
        assert!(holder.value().is_some(), "{percent} %: {holder:?}");
        assert!(runs.load(Ordering::SeqCst) <= 2);
    }
}
