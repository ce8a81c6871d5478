// SPDX-License-Identifier: MIT OR Apache-2.0
//! Brokers and stores that go away, on librdkafka's mock cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rdkafka::Message;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use retryproof_core::listener::{Poison, Reason, Verdict};
use retryproof_core::{IdempotencyEngine, SharedStore};
use retryproof_kafka::Delivery;
use retryproof_memory::MemoryStore;
use retryproof_testkit::broker::{lease_lost, not_recorded};
use retryproof_testkit::{FaultStore, Faults, Outage};
use tokio::sync::Semaphore;

use crate::support::{Mock, counting, header, start, until};

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
    until("the second one answered, with nobody there to take its offset", || {
        counters.read().acks >= 2
    })
    .await;
    mock.cluster.broker_up(-1).expect("up");
    mock.publish(0, "o-4", "{}").await;
    mock.until_committed(0, 4).await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn lst_2_a_message_whose_key_panics_is_a_dead_letter_and_ends_nothing() {
    let mock = Mock::new(1);
    let runs = Arc::new(AtomicUsize::new(0));
    mock.publish_named(b"caf\xe9").await; // rdkafka panics when it reads this name
    mock.publish(0, "o-2", "{}").await;
    let running = start(mock.listener().build().expect("built"), counting(&mock, &runs));
    mock.until_committed(0, 2).await;
    running.stop().await;
    assert_eq!((runs.load(Ordering::SeqCst), mock.buried().await), (1, 1));

    let listener = mock.listener().key(|message| {
        assert!(message.offset() != 2, "the function of the program panics");
        Some(format!("o-{}", message.offset()))
    });
    mock.publish(0, "any", "{}").await;
    mock.publish(0, "any", "{}").await;
    let listener = listener.build().expect("built");
    let counters = listener.counters();
    let running = start(listener, counting(&mock, &runs));
    mock.until_committed(0, 4).await;
    running.stop().await;
    assert_eq!((runs.load(Ordering::SeqCst), mock.buried().await), (2, 2));
    assert_eq!(counters.count_of(Reason::Poison(Poison::BadKey)), 1);
}

#[tokio::test]
async fn lst_2_a_dead_letter_that_is_not_taken_holds_its_message() {
    let mock = Mock::new(1);
    mock.publish(0, "o-1", "not json").await;
    mock.publish(0, "o-2", "not json").await;
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[refusal; 3]);
    let listener = mock.listener().build().expect("built");
    let counters = listener.counters();
    let running = start(listener, |_| async { Err::<Verdict, _>(Poison::Unreadable) });
    mock.until_committed(0, 2).await;
    running.stop().await;
    assert_eq!((mock.buried().await, counters.read().dead_letters), (2, 2), "each once");
}

#[tokio::test]
async fn lst_2_a_store_that_is_away_loses_no_message_and_spends_no_attempt() {
    let faults = Faults::none();
    let store = FaultStore::new(MemoryStore::new(), faults.clone());
    let mock = Mock::with(1, IdempotencyEngine::new(SharedStore::new(store)));
    let runs = Arc::new(AtomicUsize::new(0));
    faults.begin_outage(Outage::Refuse);
    for n in 0..3 {
        mock.publish(0, &format!("o-{n}"), "{}").await;
    }
    let listener = mock.listener().max_attempts(1).build().expect("built");
    let counters = listener.counters();
    let running = start(listener, counting(&mock, &runs));
    until("tried", || counters.count_of(Reason::Store) >= 3).await;
    faults.end_outage();
    mock.until_committed(0, 3).await;
    running.stop().await;
    assert_eq!((runs.load(Ordering::SeqCst), counters.read().acks), (3, 3));
    assert_eq!(mock.buried().await, 0);
}

#[tokio::test]
async fn lst_2_a_lost_lease_and_a_completion_that_is_not_recorded_spend_an_attempt() {
    for verdict in [lease_lost(), not_recorded().await] {
        let mock = Mock::new(1);
        mock.publish(0, "o-1", "{}").await;
        let listener = mock.listener().max_attempts(2).build().expect("built");
        let counters = listener.counters();
        let running = start(listener, move |_| async move { Ok(verdict) });
        mock.until_committed(0, 1).await;
        running.stop().await;
        let letters = mock.letters(1).await;
        assert_eq!(
            header(&letters[0], "retryproof-why").as_deref(),
            Some(verdict.reason().as_str())
        );
        assert_eq!((counters.read().nacks, counters.read().dead_letters), (1, 1), "{verdict:?}");
    }
}
