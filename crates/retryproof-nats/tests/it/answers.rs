// SPDX-License-Identifier: MIT OR Apache-2.0
//! LST-2: the answers to the server, read on the wire; messages are handled at the same time and
//! answered separately.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::pull::Config;
use retryproof_core::listener::{Backoff, Reason, Refusal, Verdict};
use retryproof_core::{
    Acquisition, HeldLease, IdempotencyContext, IdempotencyEngine, Rejected, Tombstone,
};
use retryproof_nats::Delivery;
use retryproof_testkit::broker::{Gate, unsure};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::support::{SCOPE, TestStreams, counting, start, until, waiting};

/// Acquires `key` for another owner, with the fingerprint of a message that has this `body`.
async fn hold(engine: &IdempotencyEngine, key: &str, body: &str, lease: Duration) -> HeldLease {
    let ctx = IdempotencyContext::builder(SCOPE, key)
        .lease(lease)
        .fingerprint(retryproof_core::listener::body_fingerprint(body.as_bytes()))
        .build()
        .expect("a context");
    match engine.try_acquire(&ctx).await.expect("acquired") {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn lst_2_acknowledged_after_completion() {
    let streams = TestStreams::new().await;
    let mut wire = streams.wire().await;
    let gate = Arc::new(Gate::closed());
    let listener = streams
        .listener(Config { ack_wait: Duration::from_millis(300), ..Config::default() })
        .await;
    let running = start(listener.build().expect("built"), waiting(&streams, &gate));
    streams.publish("o-1", "{}").await;
    // While the handler runs, the listener sends only progress reports (`+WPI`).
    assert_eq!(wire.next().await, "+WPI");
    assert_eq!(wire.next().await, "+WPI");
    gate.let_go(100);
    assert_eq!(wire.answer().await, "+ACK");
    let ctx = IdempotencyContext::builder(SCOPE, "o-1").build().expect("a context");
    assert!(matches!(
        streams.engine.try_acquire(&ctx).await.expect("looked"),
        Acquisition::Complete(_)
    ));
    streams.until_done().await;
    running.stop().await;
    streams.leave().await;
}

/// The context of each message has the data subject that the listener's function finds in the
/// message.
#[tokio::test]
async fn seal_3_a_function_names_the_subject_of_each_message() {
    let streams = TestStreams::new().await;
    let listener = streams.listener(Config::default()).await.data_subject(|message| {
        let body = String::from_utf8_lossy(&message.payload).into_owned();
        Some(body).filter(|name| name != "nobody")
    });
    let (runs, found) = (Arc::default(), Arc::new(Mutex::new(Vec::new())));
    let (handler, finds) = (counting(&streams, &runs), Arc::clone(&found));
    let running = start(listener.build().expect("built"), move |delivery: Delivery| {
        let ctx = delivery.context().expect("a context");
        finds.lock().unwrap().push(ctx.subject().map(str::to_owned));
        handler(delivery)
    });
    for name in ["ada", "nobody"] {
        streams.publish(name, name).await;
        streams.until_done().await;
    }
    running.stop().await;
    assert_eq!(*found.lock().unwrap(), [Some("ada".to_owned()), None]);
    streams.leave().await;
}

#[tokio::test]
async fn lst_1_a_message_published_twice_runs_once_and_both_are_acknowledged() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = streams.listener(Config::default()).await.build().expect("built");
    let counters = listener.counters();
    streams.publish("o-1", "{}").await;
    streams.publish("o-1", "{}").await;
    let running = start(listener, counting(&streams, &runs));
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!((counters.count_of(Reason::Executed), counters.count_of(Reason::Replayed)), (1, 1));
    assert_eq!(counters.read().acks, 2);
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_in_flight_stays_here_and_no_redelivery_is_counted() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let mut wire = streams.wire().await;
    // The server delivers the message only once. If the listener gave the message back, the server
    // would drop it.
    let config =
        Config { max_deliver: 1, ack_wait: Duration::from_millis(900), ..Config::default() };
    let listener = streams.listener(config).await.build().expect("built");
    let counters = listener.counters();
    let held = hold(&streams.engine, "o-1", "{}", Duration::from_secs(10)).await;
    let (handle, looked) = (counting(&streams, &runs), Arc::new(AtomicUsize::new(0)));
    let (looks, began) = (Arc::clone(&looked), Instant::now());
    let running = start(listener, move |delivery| {
        looks.fetch_add(1, Ordering::SeqCst);
        handle(delivery)
    });
    streams.publish("o-1", "{}").await;
    for _ in 0..6 {
        // Six progress reports take more than twice the `ack_wait`.
        assert_eq!(wire.next().await, "+WPI");
    }
    drop(held.complete_tombstone(Tombstone::new()).await);
    assert_eq!(wire.answer().await, "+ACK");
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 0, "the holder's work is not repeated");
    assert_eq!(
        (counters.count_of(Reason::NotReplayable), counters.count_of(Reason::InFlight)),
        (1, 0)
    );
    // The listener pauses for at least a second after each attempt except the last, however long
    // the holder took.
    let (looks, seconds) = (looked.load(Ordering::SeqCst) as u64, began.elapsed().as_secs());
    assert!(looks <= 2 + seconds, "{looks} looks in {seconds} s");
    assert_eq!(streams.info().await.delivered.consumer_sequence, 1);
    assert!(streams.letters().await.is_empty());
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_more_than_may_be_parked_are_given_back_no_sooner_than_the_lease_ends() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let mut wire = streams.wire().await;
    let listener = streams.listener(Config::default()).await.max_parked(0).build().expect("built");
    let counters = listener.counters();
    let held = hold(&streams.engine, "o-1", "{}", Duration::from_secs(10)).await;
    let running = start(listener, counting(&streams, &runs));
    streams.publish("o-1", "{}").await;
    let answers = wire.answer().await;
    let delay = answers
        .strip_prefix("-NAK {\"delay\":")
        .and_then(|rest| rest.strip_suffix('}'))
        .expect("a delay");
    // The delay is the remaining lease, rounded up to whole seconds. A heartbeat may have renewed
    // the lease.
    let delay = Duration::from_nanos(delay.parse().expect("a number"));
    assert!(delay >= Duration::from_secs(1) && delay <= Duration::from_secs(10), "{answers}");
    drop(held.release().await);
    assert_eq!(wire.answer().await, "+ACK");
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!((counters.count_of(Reason::InFlight), counters.read().acks), (1, 1), "no hot loop");
    assert_eq!(streams.info().await.delivered.consumer_sequence, 2, "one redelivery for one look");
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_failure_comes_again_and_is_run_again() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let mut wire = streams.wire().await;
    let (engine, counted) = (streams.engine.clone(), Arc::clone(&runs));
    let listener = streams.listener(Config::default()).await.build().expect("built");
    let counters = listener.counters();
    let running = start(listener, move |delivery: Delivery| {
        let (engine, counted) = (engine.clone(), Arc::clone(&counted));
        async move {
            let run = counted.fetch_add(1, Ordering::SeqCst);
            let work = async || {
                assert!(run != 1, "the second run panics");
                if run == 0 { Err("the first fails") } else { Ok(()) }
            };
            Ok(Verdict::of(&engine.execute(delivery.context()?, work).await))
        }
    });
    streams.publish("o-1", "{}").await;
    assert_eq!(wire.answer().await, "-NAK {\"delay\":20000000}");
    assert_eq!(wire.answer().await, "-NAK {\"delay\":40000000}", "longer each time");
    assert_eq!(wire.answer().await, "+ACK");
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    assert_eq!((counters.count_of(Reason::Failed), counters.count_of(Reason::Panicked)), (1, 1));
    streams.leave().await;
}

#[tokio::test]
async fn ann_5_an_annotated_function_says_by_its_error_that_it_did_not_run() {
    let streams = TestStreams::new().await;
    let mut wire = streams.wire().await;
    let listener = streams.listener(Config::default()).await.max_parked(0).build().expect("built");
    let running = start(listener, |_| async {
        let returned: Result<(), _> =
            Err(Rejected::InFlight { retry_after: Duration::from_secs(90) });
        assert!(!returned.as_ref().expect_err("refused").verdict().is_failure());
        Ok(Verdict::of_function(&returned))
    });
    streams.publish("o-1", "{}").await;
    assert_eq!(wire.answer().await, "-NAK {\"delay\":90000000000}");
    running.stop().await;
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_in_flight_with_no_time_to_wait_for_is_no_hot_loop() {
    let streams = TestStreams::new().await;
    let mut builder = streams.listener(Config::default()).await;
    builder = builder.backoff(Backoff::new(Duration::from_millis(300), Duration::from_secs(1)));
    let listener = builder.build().expect("built");
    let looked = Arc::new(AtomicUsize::new(0));
    let looks = Arc::clone(&looked);
    let began = Instant::now();
    let running = start(listener, move |_| {
        let look = looks.fetch_add(1, Ordering::SeqCst);
        async move {
            Ok(if look < 3 {
                Verdict::delayed(Duration::ZERO)
            } else {
                Verdict::of_function(&Ok::<_, Rejected>(()))
            })
        }
    });
    streams.publish("o-1", "{}").await;
    streams.until_done().await;
    let took = began.elapsed();
    running.stop().await;
    assert_eq!(
        (looked.load(Ordering::SeqCst), streams.info().await.delivered.consumer_sequence),
        (4, 1)
    );
    assert!(took >= Duration::from_millis(900), "three pauses in {took:?}");
    streams.leave().await;
}

/// LST-2: the message is redelivered when the lease of its first run has ended, and not before.
#[tokio::test]
async fn lst_2_run_4_an_error_of_unknown_effect_is_put_off_for_the_rest_of_the_lease() {
    let streams = TestStreams::new().await;
    let listener = streams.listener(Config::default()).await.build().expect("built");
    let (counters, engine) = (listener.counters(), streams.engine.clone());
    streams.publish("o-1", "{}").await;
    let running = start(listener, move |_| {
        let engine = engine.clone();
        async move {
            let ctx = IdempotencyContext::builder(SCOPE, "o-1").lease(Duration::from_secs(2));
            let ctx = ctx.wait_timeout(Duration::ZERO).build().expect("a context");
            Ok(unsure(&engine, ctx).await)
        }
    });
    streams.until_done().await;
    running.stop().await;
    assert_eq!((counters.count_of(Reason::Held), counters.count_of(Reason::InFlight)), (1, 0));
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_hundred_messages_run_eight_at_once_and_the_slow_one_keeps_none_from_its_answer() {
    let streams = TestStreams::new().await;
    let listener = streams
        .listener(Config::default())
        .await
        .prefetch(100)
        .concurrency(8)
        .build()
        .expect("built");
    let counters = listener.counters();
    for n in 0..100 {
        streams.publish(&format!("o-{n}"), "{}").await;
    }
    let gate = Arc::new(Semaphore::new(0));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (engine, opens, inside, peak) =
        (streams.engine.clone(), Arc::clone(&gate), Arc::clone(&now), Arc::clone(&most));
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
    until("all except the slow one", || counters.read().acks == 99).await;
    assert_eq!(streams.info().await.num_ack_pending, 1);
    gate.add_permits(1);
    streams.until_done().await;
    running.stop().await;
    assert_eq!(counters.read().acks, 100);
    assert!(most.load(Ordering::SeqCst) <= 8, "{most:?}");
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_no_more_is_fetched_than_there_is_room_for() {
    let streams = TestStreams::new().await;
    let listener = streams.listener(Config::default()).await.prefetch(5).build().expect("built");
    for n in 0..20 {
        streams.publish(&format!("o-{n}"), "{}").await;
    }
    let gate = Arc::new(Gate::closed());
    let running = start(listener, waiting(&streams, &gate));
    until("five at work", || gate.begun() == 5).await;
    let info = streams.info().await;
    assert_eq!((info.num_ack_pending, info.num_pending), (5, 15));
    gate.let_go(20);
    streams.until_done().await;
    running.stop().await;
    assert_eq!(gate.begun(), 20);
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_messages_whose_letters_are_not_taken_keep_their_room() {
    let streams = TestStreams::new().await;
    let config = Config { max_deliver: 1, ..Config::default() };
    let listener = streams.listener(config).await.prefetch(5).build().expect("built");
    let runs = Arc::new(AtomicUsize::new(0));
    let running = start(listener, counting(&streams, &runs));
    // The listener looks for the dead-letter stream before it handles its first message.
    streams.publish("o-1", "{}").await;
    until("a first message", || runs.load(Ordering::SeqCst) == 1).await;
    streams.until_done().await;
    streams.jetstream.delete_stream(streams.dead_stream()).await.expect("removed");
    for _ in 0..20 {
        streams.publish_with(HeaderMap::new(), "{}").await;
    }
    while streams.info().await.num_ack_pending < 5 {}
    // If the listener fetched more, it would do so now.
    streams.publish("o-2", "{}").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let info = streams.info().await;
    assert_eq!((info.num_ack_pending, info.num_pending), (5, 16));
    streams.restore_dead_stream().await;
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(streams.letters().await.len(), 20);
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_two_listeners_share_a_consumer_and_run_each_message_once() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let config = || Config { ack_wait: Duration::from_secs(20), ..Config::default() };
    let one = streams.listener(config()).await.build().expect("built");
    let other = streams.listener(config()).await.build().expect("built");
    for _ in 0..2 {
        for n in 0..100 {
            streams.publish(&format!("o-{n}"), "{}").await;
        }
    }
    let both =
        [one, other].map(|listener| start(listener, crate::support::counting(&streams, &runs)));
    streams.until_done().await;
    for running in both {
        running.stop().await;
    }
    assert_eq!(runs.load(Ordering::SeqCst), 100);
    streams.leave().await;
}
