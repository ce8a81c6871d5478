// SPDX-License-Identifier: MIT OR Apache-2.0
//! LST-2 on librdkafka's mock cluster: messages that fail are tried again in place, up to a limit;
//! an unavailable store uses up no attempt.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use retryproof_core::listener::{Backoff, Reason, Verdict};
use retryproof_core::{Error, ExecuteError, IdempotencyEngine, Outcome, SharedStore};
use retryproof_kafka::Delivery;
use retryproof_memory::MemoryStore;
use retryproof_testkit::broker::{lease_lost, not_recorded};
use retryproof_testkit::{FaultStore, Faults, Outage};
use tokio::time::Instant;

use crate::support::{Mock, counting, header, start, until};

#[tokio::test]
async fn lst_2_a_failure_is_tried_again_in_place_and_then_a_dead_letter_and_the_order_is_kept() {
    let mock = Mock::new(1);
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in 1..=3 {
        mock.publish(0, &format!("o-{n}"), "{}").await;
    }
    let listener = mock.listener().max_attempts(3).build().expect("built");
    let (counters, engine, noted) = (listener.counters(), mock.engine.clone(), Arc::clone(&order));
    let running = start(listener, move |delivery: Delivery| {
        let (engine, noted) = (engine.clone(), Arc::clone(&noted));
        async move {
            let offset = delivery.offset();
            let work = async || {
                noted.lock().expect("noted").push(offset);
                assert!(
                    offset != 1 || noted.lock().expect("noted").len() != 2,
                    "the second run panics"
                );
                if offset == 1 { Err("the printer is on fire") } else { Ok(()) }
            };
            Ok(Verdict::of(&engine.execute(delivery.context()?, work).await))
        }
    });
    mock.until_committed(0, 3).await;
    running.stop().await;
    assert_eq!(*order.lock().expect("noted"), [0, 1, 1, 1, 2]);
    let letters = mock.letters(1).await;
    assert_eq!(header(&letters[0], "retryproof-reason").as_deref(), Some("failed"));
    assert_eq!((counters.count_of(Reason::Panicked), counters.read().dead_letters), (1, 1));
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
    assert_eq!(mock.dead_letter_count().await, 0);
}

#[tokio::test]
async fn lst_2_only_an_outage_makes_the_pause_of_an_outage_longer() {
    const IN_FLIGHT: usize = 7;
    let pause = Duration::from_millis(200);
    let mock = Mock::new(1);
    mock.publish(0, "o-1", "{}").await;
    // The pause doubles with each outage in a row. If the seven pauses before the first outage
    // counted too, the pause after that outage would take 25 s.
    let listener = mock.listener().backoff(Backoff::new(pause, pause * 1_000)).build();
    let begun = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&begun);
    let running = start(listener.expect("built"), move |_| {
        let mut begun = noted.lock().expect("noted");
        begun.push(Instant::now());
        let away = || Err(ExecuteError::<&str>::Store(Error::unavailable("planted")));
        let verdict = match begun.len() {
            0..=IN_FLIGHT => Verdict::delayed(Duration::ZERO),
            8 | 9 => Verdict::of::<(), _>(&away()),
            _ => Verdict::of::<_, &str>(&Ok(Outcome::Executed(()))),
        };
        async move { Ok(verdict) }
    });
    mock.until_committed(0, 1).await;
    running.stop().await;
    let begun = begun.lock().expect("noted");
    let pauses: Vec<_> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[IN_FLIGHT] < pause * 60, "the first outage: {pauses:?}");
    assert!(pauses[IN_FLIGHT + 1] >= pause * 2, "the second in a row: {pauses:?}");
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
            header(&letters[0], "retryproof-reason").as_deref(),
            Some(verdict.reason().as_str())
        );
        assert_eq!((counters.read().nacks, counters.read().dead_letters), (1, 1), "{verdict:?}");
    }
}
