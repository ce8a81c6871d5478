// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a listener stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config;
use retryproof_core::ErrorKind;
use retryproof_nats::NatsListener;
use retryproof_testkit::broker::{Gate, Running};

use crate::support::{TestStreams, counting, header, start, until, waiting};

/// Starts the listener with five messages, of which the first waits at the gate.
async fn first_of_five(streams: &TestStreams, listener: NatsListener) -> (Running, Arc<Gate>) {
    for n in 0..5 {
        streams.publish(&format!("o-{n}"), "{}").await;
    }
    let gate = Arc::new(Gate::closed());
    let running = start(listener, waiting(streams, &gate));
    until("the first at work", || gate.begun() == 1).await;
    (running, gate)
}

#[tokio::test]
async fn run_5_a_stop_waits_for_what_runs_and_gives_back_what_was_not_begun() {
    let streams = TestStreams::new().await;
    let listener = streams.listener(Config::default()).await.concurrency(1).build().expect("built");
    let counters = listener.counters();
    let (running, gate) = first_of_five(&streams, listener).await;
    running.ask_to_stop().await;
    gate.let_go(1);
    running.ended().await.expect("no error");
    assert_eq!((gate.begun(), counters.read().acks), (1, 1));
    // The listener gives messages back with a delay. Otherwise, the server would deliver them again
    // and again to the pull request that is still open.
    let delivered = streams.info().await.delivered.consumer_sequence;
    assert!(delivered <= 10, "{delivered} deliveries of five messages");
    // The next listener gets the other messages as soon as that pull request ends, and does not
    // have to wait for `ack_wait`.
    let runs = Arc::new(AtomicUsize::new(0));
    let next = streams.listener(Config::default()).await.build().expect("built");
    let running = start(next, counting(&streams, &runs));
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 4);
    streams.leave().await;
}

#[tokio::test]
async fn run_5_a_stop_gives_back_what_waits_for_a_handler_that_is_still_running() {
    let streams = TestStreams::new().await;
    let mut wire = streams.wire().await;
    let listener = streams.listener(Config::default()).await.concurrency(1).build().expect("built");
    let (running, gate) = first_of_five(&streams, listener).await;
    running.ask_to_stop().await;
    for _ in 0..4 {
        assert!(wire.answer().await.starts_with("-NAK"));
    }
    gate.let_go(1);
    running.ended().await.expect("no error");
    assert_eq!(gate.begun(), 1);
    streams.leave().await;
}

/// The server would not deliver these messages again.
#[tokio::test]
async fn run_5_a_last_delivery_that_does_not_end_with_the_stop_is_a_dead_letter() {
    let streams = TestStreams::new().await;
    let config = Config { max_deliver: 1, ..Config::default() };
    let builder = streams.listener(config).await.concurrency(1);
    let listener = builder.drain_timeout(Duration::from_millis(200)).build().expect("built");
    let entered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&entered);
    let running = start(listener, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::pending()
    });
    for n in 0..3 {
        streams.publish(&format!("o-{n}"), "{}").await;
    }
    until("at work", || entered.load(Ordering::SeqCst) == 1).await;
    while streams.info().await.num_ack_pending < 3 {}
    running.stop().await;
    let letters = streams.letters().await;
    let reasons: Vec<_> = letters.iter().map(|(of, _)| header(of, "retryproof-reason")).collect();
    assert_eq!(reasons, [Some("in-flight"); 3]);
    assert_eq!(streams.info().await.num_ack_pending, 0);
    streams.leave().await;
}

#[tokio::test]
async fn run_5_what_takes_longer_than_the_drain_time_is_dropped() {
    let streams = TestStreams::new().await;
    let builder =
        streams.listener(Config::default()).await.drain_timeout(Duration::from_millis(20));
    let entered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&entered);
    let running = start(builder.build().expect("built"), move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::pending()
    });
    streams.publish("o-1", "{}").await;
    until("at work", || entered.load(Ordering::SeqCst) == 1).await;
    running.stop().await;
    assert_eq!(streams.info().await.num_ack_pending, 1, "it comes again");
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_deleted_consumer_or_stream_ends_its_listener_with_an_error() {
    for with_stream in [false, true] {
        let streams = TestStreams::new().await;
        let runs = Arc::new(AtomicUsize::new(0));
        let listener = streams.listener(Config::default()).await.build().expect("built");
        let running = start(listener, counting(&streams, &runs));
        streams.publish("o-1", "{}").await;
        streams.until_done().await;
        if with_stream {
            streams.jetstream.delete_stream(&streams.name).await.expect("deleted");
        } else {
            let stream = streams.jetstream.get_stream(&streams.name).await.expect("the stream");
            stream.delete_consumer("invoices").await.expect("deleted");
        }
        let error = running.ended().await.expect_err("an error");
        assert_eq!(error.kind(), ErrorKind::Unexpected);
        assert!(error.to_string().contains("the consumer was deleted"), "{error}");
        if !with_stream {
            streams.jetstream.delete_stream(&streams.name).await.expect("deleted");
        }
        streams.jetstream.delete_stream(streams.dead_stream()).await.expect("deleted");
    }
}
