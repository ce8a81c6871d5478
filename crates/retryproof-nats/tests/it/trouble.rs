// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections that break and consumers that die, mostly between completion and acknowledgement.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::pull::Config;
use retryproof_core::listener::{Reason, Verdict};
use retryproof_nats::{Delivery, NatsListener, NatsListenerBuilder};
use retryproof_testkit::broker::Running;
use retryproof_testkit::wire::WireProxy;
use tokio::sync::Semaphore;

use crate::support::{TestStreams, counting, start, until, url};

/// Returns a proxy, and a listener whose connection the proxy can cut and stall. Messages without
/// an answer are redelivered after `ack_wait`.
async fn behind_a_proxy(
    streams: &TestStreams,
    ack_wait: Duration,
) -> (Arc<WireProxy>, NatsListenerBuilder) {
    let at: SocketAddr = url().trim_start_matches("nats://").parse().expect("an address");
    let proxy = WireProxy::to(at).await.expect("a port");
    let client = async_nats::connect(proxy.addr().to_string()).await.expect("connected");
    let jetstream = jetstream::new(client);
    let consumer =
        streams.consumer_over(&jetstream, Config { ack_wait, ..Config::default() }).await;
    (Arc::new(proxy), streams.builder(jetstream, consumer))
}

/// Starts the listener, disturbs its connection once, when the first message is completed, and then
/// returns.
async fn with_trouble(
    streams: &TestStreams,
    listener: NatsListener,
    runs: &Arc<AtomicUsize>,
    trouble: impl Fn() + Send + Sync + 'static,
) -> Running {
    let (handle, trouble) = (counting(streams, runs), Arc::new(trouble));
    let (begun, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let is_over = Arc::clone(&over);
    let running = start(listener, move |delivery| {
        let (done, trouble) = (handle(delivery), Arc::clone(&trouble));
        let (begun, over) = (Arc::clone(&begun), Arc::clone(&over));
        async move {
            let verdict = done.await;
            if !begun.swap(true, Ordering::SeqCst) {
                trouble();
                over.store(true, Ordering::SeqCst);
            }
            verdict
        }
    });
    streams.publish("o-1", "{}").await;
    until("completed, and in trouble", || is_over.load(Ordering::SeqCst)).await;
    running
}

#[tokio::test]
async fn lst_2_the_server_away_between_completion_and_acknowledgement_costs_no_second_run() {
    let streams = TestStreams::new().await;
    let (proxy, listener) = behind_a_proxy(&streams, Duration::from_secs(2)).await;
    let listener = listener.build().expect("built");
    let (runs, line) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&proxy));
    let gone = move || {
        line.refuse(true);
        line.cut();
    };
    let running = with_trouble(&streams, listener, &runs, gone).await;
    // The server receives no answer and prepares to deliver the message again.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    proxy.refuse(false);
    streams.publish("o-2", "{}").await;
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 2, "each once");
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_line_that_hangs_between_completion_and_acknowledgement_costs_no_second_run() {
    let streams = TestStreams::new().await;
    let (proxy, listener) = behind_a_proxy(&streams, Duration::from_secs(1)).await;
    let listener = listener.build().expect("built");
    let (runs, line) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&proxy));
    let running = with_trouble(&streams, listener, &runs, move || line.stall(true)).await;
    // The message is redelivered to a second consumer while the first consumer's answer is in
    // flight.
    let second =
        streams.listener(Config { ack_wait: Duration::from_secs(1), ..Config::default() }).await;
    let second = second.build().expect("built");
    let counters = second.counters();
    let other = start(second, counting(&streams, &runs));
    until("redelivered", || counters.count_of(Reason::Replayed) == 1).await;
    proxy.stall(false);
    streams.until_done().await;
    other.stop().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_consumer_that_dies_between_completion_and_acknowledgement_costs_no_second_run() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let config = || Config { ack_wait: Duration::from_millis(500), ..Config::default() };
    let listener = streams.listener(config()).await.build().expect("built");
    let (handle, done) = (counting(&streams, &runs), Arc::new(Semaphore::new(0)));
    let completed = Arc::clone(&done);
    let running = start(listener, move |delivery| {
        let (completed, work) = (Arc::clone(&completed), handle(delivery));
        async move {
            let _ = work.await;
            completed.add_permits(1);
            std::future::pending().await
        }
    });
    streams.publish("o-1", "{}").await;
    drop(done.acquire().await);
    running.die().await;
    let next = streams.listener(config()).await.build().expect("built");
    let counters = next.counters();
    let running = start(next, counting(&streams, &runs));
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!((counters.count_of(Reason::Replayed), counters.count_of(Reason::Executed)), (1, 0));
    streams.leave().await;
}

/// The listener does not wait for the end of its request, which was lost with the connection.
#[tokio::test]
async fn lst_2_an_idle_listener_goes_on_over_a_new_connection() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    // With an `ack_wait` of 1 s, messages that were sent over a cut connection are redelivered
    // soon.
    let (proxy, listener) = behind_a_proxy(&streams, Duration::from_secs(1)).await;
    let listener = listener.build().expect("built");
    let running = start(listener, counting(&streams, &runs));
    for n in 0..5 {
        streams.publish(&format!("o-{n}"), "{}").await;
        until("handled", || runs.load(Ordering::SeqCst) == n + 1).await;
        let lines = proxy.lines();
        proxy.cut();
        until("connected again", || proxy.lines() > lines).await;
    }
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 5);
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_connections_cut_all_the_while_run_each_message_once() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let (proxy, listener) = behind_a_proxy(&streams, Duration::from_secs(1)).await;
    let listener = listener.prefetch(20).build().expect("built");
    let counters = listener.counters();
    let handle = counting(&streams, &runs);
    let running = start(listener, move |delivery: Delivery| {
        let work = handle(delivery);
        async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            work.await
        }
    });
    for n in 0..200 {
        streams.publish(&format!("o-{n}"), "{}").await;
        if n % 20 == 19 {
            proxy.cut();
        }
    }
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 200);
    assert_eq!(counters.count_of(Reason::Executed), 200);
    assert!(
        matches!(Verdict::failed(), Verdict::Nack { .. }) && streams.letters().await.is_empty()
    );
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_server_that_is_away_at_the_start_is_waited_for_until_a_stop() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    streams.publish("o-1", "{}").await;
    for returns in [false, true] {
        let (proxy, listener) = behind_a_proxy(&streams, Duration::from_secs(1)).await;
        proxy.refuse(true);
        proxy.cut();
        let running = start(listener.build().expect("built"), counting(&streams, &runs));
        if returns {
            // A second is long enough for a fetch request to fail.
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(runs.load(Ordering::SeqCst), 0);
            proxy.refuse(false);
            until("handled", || runs.load(Ordering::SeqCst) == 1).await;
        }
        running.stop().await;
    }
    streams.until_done().await;
    streams.leave().await;
}
