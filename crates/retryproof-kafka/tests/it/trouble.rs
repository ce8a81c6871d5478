// SPDX-License-Identifier: MIT OR Apache-2.0
//! Brokers that become unavailable, on librdkafka's mock cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use retryproof_kafka::Delivery;
use tokio::sync::Semaphore;

use crate::support::{Mock, counting, start, until};

#[tokio::test]
async fn lst_2_the_broker_away_between_completion_and_commit_costs_no_second_run() {
    let mock = Mock::new(1);
    let runs = Arc::new(AtomicUsize::new(0));
    let (down, go) = (Arc::new(AtomicBool::new(false)), Arc::new(Semaphore::new(0)));
    for n in 0..3 {
        mock.publish(0, &format!("o-{n}"), "{}").await;
    }
    let (handle, is_down, going) = (counting(&mock, &runs), Arc::clone(&down), Arc::clone(&go));
    let listener = mock.listener().build().expect("built");
    let counters = listener.counters();
    let running = start(listener, move |delivery: Delivery| {
        let (is_down, going) = (Arc::clone(&is_down), Arc::clone(&going));
        let second = delivery.offset() == 1;
        let work = handle(delivery);
        async move {
            let verdict = work.await;
            if second {
                is_down.store(true, Ordering::SeqCst);
                drop(going.acquire().await);
            }
            verdict
        }
    });
    until("completed", || down.load(Ordering::SeqCst)).await;
    mock.cluster.broker_down(-1).expect("down");
    go.add_permits(100);
    until("the second message has an answer, but no broker takes its offset", || {
        counters.read().acks >= 2
    })
    .await;
    mock.cluster.broker_up(-1).expect("up");
    mock.publish(0, "o-4", "{}").await;
    mock.until_committed(0, 4).await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 4);
}
