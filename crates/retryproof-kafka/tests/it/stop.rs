// SPDX-License-Identifier: MIT OR Apache-2.0
//! An orderly stop, on librdkafka's mock cluster: running handlers finish, and no new one begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use retryproof_core::listener::{Backoff, Poison, Reason, Verdict};
use retryproof_kafka::Delivery;
use tokio::sync::Semaphore;

use crate::support::{Mock, counting, start, until};

/// Longer than any wait of a test.
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn lst_2_a_stop_ends_what_is_at_work_and_begins_nothing() {
    let mock = Mock::new(1);
    let (runs, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for n in 0..20 {
        mock.publish(0, &format!("o-{n}"), "{}").await;
    }
    let gate = Arc::new(Semaphore::new(0));
    let (handle, opens, begins) = (counting(&mock, &runs), Arc::clone(&gate), Arc::clone(&begun));
    let listener = mock.listener().drain_timeout(HOUR).build().expect("built");
    let running = start(listener, move |delivery: Delivery| {
        begins.fetch_add(1, Ordering::SeqCst);
        let (opens, last, work) = (Arc::clone(&opens), delivery.offset() == 2, handle(delivery));
        async move {
            if last {
                drop(opens.acquire().await);
            }
            work.await
        }
    });
    until("the third message in progress", || begun.load(Ordering::SeqCst) == 3).await;
    running.ask_to_stop().await;
    gate.add_permits(1);
    running.stop().await;
    assert_eq!((begun.load(Ordering::SeqCst), runs.load(Ordering::SeqCst)), (3, 3));
    assert_eq!(mock.committed(0).await, Some(3), "the third message too");
}

#[tokio::test]
async fn lst_2_a_stop_waits_for_no_pause() {
    let mock = Mock::new(2);
    mock.publish(0, "o-1", "{}").await;
    mock.publish(1, "o-2", "not json").await;
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[refusal]);
    let listener = mock
        .listener()
        .backoff(Backoff::new(HOUR, HOUR))
        .drain_timeout(HOUR)
        .build()
        .expect("built");
    let counters = listener.counters();
    let unreadable = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&unreadable);
    let running = start(listener, move |delivery: Delivery| {
        let first = delivery.partition() == 0;
        counted.fetch_add(usize::from(!first), Ordering::SeqCst);
        async move { if first { Ok(Verdict::delayed(HOUR)) } else { Err(Poison::Unreadable) } }
    });
    until("both wait", || {
        counters.count_of(Reason::InFlight) == 1 && unreadable.load(Ordering::SeqCst) == 1
    })
    .await;
    running.stop().await;
    assert_eq!(
        (mock.committed(0).await, mock.committed(1).await),
        (None, None),
        "neither is answered"
    );
    assert_eq!(mock.dead_letter_count().await, 0);
}
