// SPDX-License-Identifier: MIT OR Apache-2.0
//! LST-2: the server's limit of deliveries, and what must not use it up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config;
use retryproof_core::listener::{Reason, Verdict};
use retryproof_core::{ErrorKind, IdempotencyConfig, IdempotencyEngine, SharedStore};
use retryproof_memory::MemoryStore;
use retryproof_nats::Delivery;
use retryproof_testkit::broker::{Gate, lease_lost, not_recorded};
use retryproof_testkit::{FaultStore, Faults, Outage};

use crate::support::{TestStreams, counting, header, start, until, waiting};

#[tokio::test]
async fn lst_2_a_message_that_fails_in_its_last_delivery_is_a_dead_letter() {
    for (config, own) in
        [(Config { max_deliver: 3, ..Config::default() }, None), (Config::default(), Some(3))]
    {
        let streams = TestStreams::new().await;
        let runs = Arc::new(AtomicUsize::new(0));
        let (engine, counted) = (streams.engine.clone(), Arc::clone(&runs));
        let mut builder = streams.listener(config).await;
        if let Some(own) = own {
            builder = builder.max_deliveries(own);
        }
        let listener = builder.build().expect("built");
        streams.publish("o-1", "{}").await;
        let running = start(listener, move |delivery: Delivery| {
            let (engine, counted) = (engine.clone(), Arc::clone(&counted));
            async move {
                let work = async || {
                    counted.fetch_add(1, Ordering::SeqCst);
                    Err::<(), _>("the printer is on fire")
                };
                Ok(Verdict::of(&engine.execute(delivery.context()?, work).await))
            }
        });
        let letters = streams.until_letters(1).await;
        streams.until_done().await;
        running.stop().await;
        assert_eq!(runs.load(Ordering::SeqCst), 3);
        assert_eq!(header(&letters[0].0, "retryproof-reason"), Some("failed"));
        assert_eq!(header(&letters[0].0, "retryproof-deliveries"), Some("3"));
        streams.leave().await;
    }
}

#[tokio::test]
async fn lst_2_a_lost_lease_and_a_completion_that_is_not_recorded_spend_the_last_delivery() {
    for verdict in [lease_lost(), not_recorded().await] {
        let streams = TestStreams::new().await;
        let listener = streams.listener(Config { max_deliver: 2, ..Config::default() }).await;
        let listener = listener.build().expect("built");
        let counters = listener.counters();
        streams.publish("o-1", "{}").await;
        let running = start(listener, move |_| async move { Ok(verdict) });
        let letters = streams.until_letters(1).await;
        streams.until_done().await;
        running.stop().await;
        assert_eq!(header(&letters[0].0, "retryproof-reason"), Some(verdict.reason().as_str()));
        assert_eq!(header(&letters[0].0, "retryproof-deliveries"), Some("2"));
        assert_eq!((counters.read().nacks, counters.read().dead_letters), (1, 1), "{verdict:?}");
        streams.leave().await;
    }
}

#[tokio::test]
async fn lst_2_a_store_that_is_away_costs_no_message_its_last_delivery() {
    let faults = Faults::none();
    let store = FaultStore::new(MemoryStore::new(), faults.clone());
    let mut config = IdempotencyConfig::default();
    config.operation_timeout = Duration::from_millis(200);
    let engine = IdempotencyEngine::builder(SharedStore::new(store))
        .config(config)
        .build()
        .expect("an engine");
    let streams = TestStreams::with(engine).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let looked = Arc::new(AtomicUsize::new(0));
    let listener = streams
        .listener(Config { max_deliver: 1, ..Config::default() })
        .await
        .build()
        .expect("built");
    let counters = listener.counters();
    faults.begin_outage(Outage::Refuse);
    streams.publish("o-1", "{}").await;
    let (handle, counted) = (counting(&streams, &runs), Arc::clone(&looked));
    let running = start(listener, move |delivery| {
        counted.fetch_add(1, Ordering::SeqCst);
        handle(delivery)
    });
    until("looked at three times", || looked.load(Ordering::SeqCst) >= 3).await;
    assert_eq!(
        (counters.read().acks, counters.read().nacks, counters.read().dead_letters),
        (0, 0, 0)
    );
    faults.end_outage();
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!((counters.read().acks, streams.info().await.delivered.consumer_sequence), (1, 1));
    assert!(streams.letters().await.is_empty());
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_store_that_is_away_sends_messages_back_and_slows_the_listener_down() {
    let faults = Faults::none();
    let store = FaultStore::new(MemoryStore::new(), faults.clone());
    let streams = TestStreams::with(IdempotencyEngine::new(SharedStore::new(store))).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = streams.listener(Config::default()).await.prefetch(10).build().expect("built");
    let counters = listener.counters();
    faults.begin_outage(Outage::Refuse);
    for n in 0..50 {
        streams.publish(&format!("o-{n}"), "{}").await;
    }
    let running = start(listener, counting(&streams, &runs));
    until("sent back", || counters.count_of(Reason::Store) >= 10).await;
    faults.end_outage();
    streams.until_done().await;
    running.stop().await;
    assert_eq!((runs.load(Ordering::SeqCst), counters.read().acks), (50, 50));
    assert!(streams.letters().await.is_empty());
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_long_work_is_not_redelivered_while_it_runs() {
    let streams = TestStreams::new().await;
    let mut wire = streams.wire().await;
    let gate = Arc::new(Gate::closed());
    let config = Config { ack_wait: Duration::from_secs(6), ..Config::default() };
    let listener = streams.listener(config).await.build().expect("built");
    streams.publish("o-1", "{}").await;
    let running = start(listener, waiting(&streams, &gate));
    // The listener reports progress every 2 s. Four reports take longer than `ack_wait`.
    for _ in 0..4 {
        assert_eq!(wire.next().await, "+WPI");
    }
    gate.let_go(1);
    assert_eq!(wire.answer().await, "+ACK");
    streams.until_done().await;
    running.stop().await;
    assert_eq!(gate.begun(), 1);
    assert_eq!(streams.info().await.delivered.consumer_sequence, 1);
    streams.leave().await;
}

/// A store error that a redelivery cannot cure does not make a message poison, because the message
/// is not the cause.
#[tokio::test]
async fn lst_2_an_engine_that_shuts_down_sends_messages_back() {
    let streams = TestStreams::new().await;
    let mut wire = streams.wire().await;
    let runs = Arc::new(AtomicUsize::new(0));
    streams.engine.shutdown(Duration::from_secs(1)).await;
    let listener = streams.listener(Config::default()).await.build().expect("built");
    let counters = listener.counters();
    let running = start(listener, counting(&streams, &runs));
    streams.publish("o-1", "{}").await;
    assert!(wire.answer().await.starts_with("-NAK"));
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert!(counters.count_of(Reason::Store) >= 1, "{:?}", ErrorKind::ShuttingDown);
    streams.leave().await;
}
