// SPDX-License-Identifier: MIT OR Apache-2.0
//! A redelivery while the first delivery runs: put off for the rest of the lease, at no one's cost (LST-1, LST-2).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use retryproof_core::listener::{Reason, Verdict};
use retryproof_core::{IdempotencyEngine, MemoryStore};
use tokio::sync::Notify;

use crate::support::{Desk, Running};

/// Beats come every half, so at least 1 s of it is left whenever it is looked at on time.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "that no message came too soon is said in real time")]
async fn lst_2_in_flight_is_put_off_by_the_rest_of_the_lease_without_a_loop_and_counts_as_no_failure() {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let (runs, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, gate) = (Arc::clone(&runs), Arc::clone(&go));
    // A limit of one failure: a delivery that counted as one would be a dead letter.
    let consumer = desk.consumer().lease(LEASE).most_failures(1).build().expect("built");
    let running = Running::start(&consumer, move |incoming| {
        assert_eq!((incoming.message.failures(), incoming.message.header("x-delivery-count")), (0, None));
        let (call, runs, gate) = (engine.call(incoming.ctx), Arc::clone(&counted), Arc::clone(&gate));
        async move {
            let run = async || {
                runs.fetch_add(1, Ordering::SeqCst);
                gate.notified().await;
                Ok::<_, std::io::Error>(())
            };
            Verdict::of(&call.execute(run).await)
        }
    });
    desk.publish("k", "paid").await;
    desk.publish("k", "paid").await;
    running.answered(Reason::InFlight, 1).await;
    let began = Instant::now();
    running.answered(Reason::InFlight, 3).await;
    // Two full delays of at least a second lie between the first and the third.
    let (took, looks) = (began.elapsed(), running.tally.because(Reason::InFlight) - 1);
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert!(looks <= took.as_secs() + 1, "{looks} redeliveries in {took:?}");
    go.notify_one();
    running.answered(Reason::Executed, 1).await;
    running.answered(Reason::Replayed, 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(running.tally.read().dead_letters, 0);
    running.stop().await.expect("stopped");
    assert_eq!(desk.ready(&desk.queue).await, 0);
    desk.clean().await;
}

#[tokio::test]
async fn lst_1_with_a_wait_a_redelivery_waits_for_the_first_and_is_skipped() {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let (runs, begun, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (counted, says, gate) = (Arc::clone(&runs), Arc::clone(&begun), Arc::clone(&go));
    let consumer = desk.consumer().wait_timeout(Duration::from_secs(600)).build().expect("built");
    let watched = engine.clone();
    let running = Running::start(&consumer, move |incoming| {
        let call = engine.call(incoming.ctx);
        let (runs, says, gate) = (Arc::clone(&counted), Arc::clone(&says), Arc::clone(&gate));
        async move {
            let run = async || {
                runs.fetch_add(1, Ordering::SeqCst);
                says.notify_one();
                gate.notified().await;
                Ok::<_, std::io::Error>(())
            };
            Verdict::of(&call.execute(run).await)
        }
    });
    desk.publish("k", "paid").await;
    begun.notified().await;
    desk.publish("k", "paid").await;
    crate::support::eventually("the second waits", async || watched.activity().waiting == 1).await;
    go.notify_one();
    running.answered(Reason::Executed, 1).await;
    running.answered(Reason::Replayed, 1).await;
    assert_eq!((runs.load(Ordering::SeqCst), running.tally.because(Reason::InFlight)), (1, 0));
    running.stop().await.expect("stopped");
    desk.clean().await;
}
