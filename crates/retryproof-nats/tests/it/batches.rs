// SPDX-License-Identifier: MIT OR Apache-2.0
//! LST-2: messages are handled at the same time and answered separately.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config;
use retryproof_core::listener::Verdict;
use retryproof_nats::Delivery;
use retryproof_testkit::broker::Gate;
use tokio::sync::Semaphore;

use crate::support::{Place, start, until, waiting};

#[tokio::test]
async fn lst_2_a_hundred_messages_run_eight_at_once_and_the_slow_one_keeps_none_from_its_answer() {
    let place = Place::new().await;
    let listener = place
        .listener(Config::default())
        .await
        .prefetch(100)
        .concurrency(8)
        .build()
        .await
        .expect("built");
    let counters = listener.counters();
    for n in 0..100 {
        place.publish(&format!("o-{n}"), "{}").await;
    }
    let gate = Arc::new(Semaphore::new(0));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (engine, opens, inside, peak) =
        (place.engine.clone(), Arc::clone(&gate), Arc::clone(&now), Arc::clone(&most));
    let running = start(listener, move |delivery: Delivery| {
        let (engine, opens) = (engine.clone(), Arc::clone(&opens));
        let (inside, peak) = (Arc::clone(&inside), Arc::clone(&peak));
        async move {
            let slow = delivery.sequence() == 50;
            let work = async || {
                peak.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if slow {
                    drop(opens.acquire().await);
                }
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok::<(), std::io::Error>(())
            };
            Ok(Verdict::of(&engine.execute(delivery.context()?, work).await))
        }
    });
    until("all but the slow one", || counters.read().acks == 99).await;
    assert_eq!(place.info().await.num_ack_pending, 1);
    gate.add_permits(1);
    place.until_done().await;
    running.stop().await;
    assert_eq!(counters.read().acks, 100);
    assert!(most.load(Ordering::SeqCst) <= 8, "{most:?}");
    place.leave().await;
}

#[tokio::test]
async fn lst_2_no_more_is_fetched_than_there_is_room_for() {
    let place = Place::new().await;
    let listener =
        place.listener(Config::default()).await.prefetch(5).build().await.expect("built");
    for n in 0..20 {
        place.publish(&format!("o-{n}"), "{}").await;
    }
    let gate = Arc::new(Gate::closed());
    let running = start(listener, waiting(&place, &gate));
    until("five at work", || gate.begun() == 5).await;
    let info = place.info().await;
    assert_eq!((info.num_ack_pending, info.num_pending), (5, 15));
    gate.let_go(20);
    place.until_done().await;
    running.stop().await;
    assert_eq!(gate.begun(), 20);
    place.leave().await;
}

#[tokio::test]
async fn lst_2_two_listeners_share_a_consumer_and_run_each_message_once() {
    let place = Place::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let config = || Config { ack_wait: Duration::from_secs(20), ..Config::default() };
    let one = place.listener(config()).await.build().await.expect("built");
    let other = place.listener(config()).await.build().await.expect("built");
    for _ in 0..2 {
        for n in 0..100 {
            place.publish(&format!("o-{n}"), "{}").await;
        }
    }
    let both =
        [one, other].map(|listener| start(listener, crate::support::counting(&place, &runs)));
    place.until_done().await;
    for running in both {
        running.stop().await;
    }
    assert_eq!(runs.load(Ordering::SeqCst), 100);
    place.leave().await;
}
