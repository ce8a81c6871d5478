// SPDX-License-Identifier: MIT OR Apache-2.0
//! A redelivery while the first delivery runs: delayed for the rest of the lease, without counting as
//! a failure (LST-1, LST-2).

use std::sync::Arc;
use std::time::{Duration, Instant};

use retryproof_core::IdempotencyEngine;
use retryproof_core::listener::{Backoff, Reason};
use retryproof_memory::MemoryStore;
use retryproof_testkit::broker::{Gate, gated, unsure, until};

use crate::support::{Desk, Running};

/// A heartbeat renews it at half of its time, so at least 1 s of it is left at any moment.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "that no message came too soon is said in real time")]
async fn lst_2_in_flight_is_put_off_by_the_rest_of_the_lease_without_a_loop_and_counts_as_no_failure()
 {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let gate = Arc::new(Gate::closed());
    let waits_at = Arc::clone(&gate);
    // With one attempt, a delivery that counted as a failure would become a dead letter.
    let consumer = desk.consumer().lease(LEASE).max_attempts(1).build().expect("built");
    let running = Running::start(&consumer, move |incoming| {
        assert_eq!(
            (incoming.message.failures(), incoming.message.header("x-delivery-count")),
            (0, None)
        );
        let (engine, gate) = (engine.clone(), Arc::clone(&waits_at));
        async move { gated(&engine, incoming.ctx, &gate).await }
    });
    desk.publish("k", "paid").await;
    desk.publish("k", "paid").await;
    running.answered(Reason::InFlight, 1).await;
    let began = Instant::now();
    running.answered(Reason::InFlight, 3).await;
    // At least two delays of a second are between the first and the third.
    let (took, looks) = (began.elapsed(), running.counters.count_of(Reason::InFlight) - 1);
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert!(looks <= took.as_secs() + 1, "{looks} redeliveries in {took:?}");
    gate.let_go(1);
    running.answered(Reason::Executed, 1).await;
    running.answered(Reason::Replayed, 1).await;
    assert_eq!(gate.begun(), 1);
    assert_eq!(running.counters.read().dead_letters, 0);
    running.stop().await.expect("stopped");
    assert_eq!(desk.ready(&desk.queue).await, 0);
    desk.clean().await;
}

#[tokio::test]
async fn lst_1_with_a_wait_a_redelivery_waits_for_the_first_and_is_skipped() {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let gate = Arc::new(Gate::closed());
    let consumer = desk.consumer().wait_timeout(Duration::from_secs(600)).build().expect("built");
    let running = Running::waiting(&consumer, &engine, &gate);
    desk.publish("k", "paid").await;
    until("the first is at work", || gate.begun() == 1).await;
    desk.publish("k", "paid").await;
    until("the second waits", || engine.activity().waiting == 1).await;
    gate.let_go(1);
    running.answered(Reason::Executed, 1).await;
    running.answered(Reason::Replayed, 1).await;
    assert_eq!((gate.begun(), running.counters.count_of(Reason::InFlight)), (1, 0));
    running.stop().await.expect("stopped");
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_run_4_an_error_of_unknown_effect_is_put_off_for_the_rest_of_the_lease() {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let soon = Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
    let consumer = desk.consumer().lease(LEASE).backoff(soon).build().expect("built");
    let running = Running::start(&consumer, move |incoming| {
        let engine = engine.clone();
        async move { unsure(&engine, incoming.ctx).await }
    });
    desk.publish("k", "paid").await;
    running.answered(Reason::Executed, 1).await;
    assert_eq!(
        (running.counters.count_of(Reason::Held), running.counters.count_of(Reason::InFlight)),
        (1, 0)
    );
    running.stop().await.expect("stopped");
    desk.clean().await;
}
