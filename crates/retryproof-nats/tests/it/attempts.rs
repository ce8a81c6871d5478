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

use crate::support::{Place, counting, header, start, until, waiting};

#[tokio::test]
async fn lst_2_a_message_that_fails_in_its_last_delivery_is_a_dead_letter() {
    for (config, own) in
        [(Config { max_deliver: 3, ..Config::default() }, None), (Config::default(), Some(3))]
    {
        let place = Place::new().await;
        let runs = Arc::new(AtomicUsize::new(0));
        let (engine, counted) = (place.engine.clone(), Arc::clone(&runs));
        let mut builder = place.listener(config).await;
        if let Some(own) = own {
            builder = builder.max_deliveries(own);
        }
        let listener = builder.build().expect("built");
        place.publish("o-1", "{}").await;
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
        let letters = place.until_letters(1).await;
        place.until_done().await;
        running.stop().await;
        assert_eq!(runs.load(Ordering::SeqCst), 3);
        assert_eq!(header(&letters[0].0, "retryproof-reason"), Some("failed"));
        assert_eq!(header(&letters[0].0, "retryproof-deliveries"), Some("3"));
        place.leave().await;
    }
}

#[tokio::test]
async fn lst_2_a_lost_lease_and_a_completion_that_is_not_recorded_spend_the_last_delivery() {
    for verdict in [lease_lost(), not_recorded().await] {
        let place = Place::new().await;
        let listener = place.listener(Config { max_deliver: 2, ..Config::default() }).await;
        let listener = listener.build().expect("built");
        let counters = listener.counters();
        place.publish("o-1", "{}").await;
        let running = start(listener, move |_| async move { Ok(verdict) });
        let letters = place.until_letters(1).await;
        place.until_done().await;
        running.stop().await;
        assert_eq!(header(&letters[0].0, "retryproof-reason"), Some(verdict.reason().as_str()));
        assert_eq!(header(&letters[0].0, "retryproof-deliveries"), Some("2"));
        assert_eq!((counters.read().nacks, counters.read().dead_letters), (1, 1), "{verdict:?}");
        place.leave().await;
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
    let place = Place::with(engine).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let asked = Arc::new(AtomicUsize::new(0));
    let listener = place
        .listener(Config { max_deliver: 1, ..Config::default() })
        .await
        .build()
        .expect("built");
    let counters = listener.counters();
    faults.begin_outage(Outage::Refuse);
    place.publish("o-1", "{}").await;
    let (handle, counted) = (counting(&place, &runs), Arc::clone(&asked));
    let running = start(listener, move |delivery| {
        counted.fetch_add(1, Ordering::SeqCst);
        handle(delivery)
    });
    until("looked at three times", || asked.load(Ordering::SeqCst) >= 3).await;
    assert_eq!(
        (counters.read().acks, counters.read().nacks, counters.read().dead_letters),
        (0, 0, 0)
    );
    faults.end_outage();
    place.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!((counters.read().acks, place.info().await.delivered.consumer_sequence), (1, 1));
    assert!(place.letters().await.is_empty());
    place.leave().await;
}

#[tokio::test]
async fn lst_2_a_store_that_is_away_sends_messages_back_and_slows_the_listener_down() {
    let faults = Faults::none();
    let store = FaultStore::new(MemoryStore::new(), faults.clone());
    let place = Place::with(IdempotencyEngine::new(SharedStore::new(store))).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = place.listener(Config::default()).await.prefetch(10).build().expect("built");
    let counters = listener.counters();
    faults.begin_outage(Outage::Refuse);
    for n in 0..50 {
        place.publish(&format!("o-{n}"), "{}").await;
    }
    let running = start(listener, counting(&place, &runs));
    until("sent back", || counters.count_of(Reason::Store) >= 10).await;
    faults.end_outage();
    place.until_done().await;
    running.stop().await;
    assert_eq!((runs.load(Ordering::SeqCst), counters.read().acks), (50, 50));
    assert!(place.letters().await.is_empty());
    place.leave().await;
}

#[tokio::test]
async fn lst_2_long_work_is_not_redelivered_while_it_runs() {
    let place = Place::new().await;
    let mut wire = place.wire().await;
    let gate = Arc::new(Gate::closed());
    let config = Config { ack_wait: Duration::from_secs(6), ..Config::default() };
    let listener = place.listener(config).await.build().expect("built");
    place.publish("o-1", "{}").await;
    let running = start(listener, waiting(&place, &gate));
    // One report every 2 s; together they take longer than `ack_wait`.
    for _ in 0..4 {
        assert_eq!(wire.next().await, "+WPI");
    }
    gate.let_go(1);
    assert_eq!(wire.answer().await, "+ACK");
    place.until_done().await;
    running.stop().await;
    assert_eq!(gate.begun(), 1);
    assert_eq!(place.info().await.delivered.consumer_sequence, 1);
    place.leave().await;
}

/// A store error that no redelivery cures does not make the message poison: it is not at fault.
#[tokio::test]
async fn lst_2_an_engine_that_shuts_down_sends_messages_back() {
    let place = Place::new().await;
    let mut wire = place.wire().await;
    let runs = Arc::new(AtomicUsize::new(0));
    place.engine.shutdown(Duration::from_secs(1)).await;
    let listener = place.listener(Config::default()).await.build().expect("built");
    let counters = listener.counters();
    let running = start(listener, counting(&place, &runs));
    place.publish("o-1", "{}").await;
    assert!(wire.answer().await.starts_with("-NAK"));
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert!(counters.count_of(Reason::Store) >= 1, "{:?}", ErrorKind::ShuttingDown);
    place.leave().await;
}
