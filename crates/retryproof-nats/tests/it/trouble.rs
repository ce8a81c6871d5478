// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections that break and consumers that die, between completion and acknowledgement above all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::{self, Context};
use retryproof_core::listener::{Reason, Verdict};
use retryproof_nats::Delivery;
use retryproof_testkit::wire::WireProxy;
use tokio::sync::Semaphore;

use crate::support::{Place, counting, start, until, url};

async fn proxy() -> (WireProxy, Context) {
    let at: SocketAddr = url().trim_start_matches("nats://").parse().expect("an address");
    let proxy = WireProxy::to(at).await.expect("a port");
    let client = async_nats::connect(proxy.addr().to_string()).await.expect("connected");
    (proxy, jetstream::new(client))
}

#[tokio::test]
async fn lst_2_the_server_away_between_completion_and_acknowledgement_costs_no_second_run() {
    let place = Place::new().await;
    let (proxy, jetstream) = proxy().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let config = Config { ack_wait: Duration::from_secs(2), ..Config::default() };
    let consumer = place.consumer_over(&jetstream, config).await;
    let listener = place.builder(jetstream, consumer).build().await.expect("built");
    let (handle, proxy) = (counting(&place, &runs), Arc::new(proxy));
    let (line, cut) = (Arc::clone(&proxy), Arc::new(AtomicBool::new(false)));
    let was_cut = Arc::clone(&cut);
    let running = start(listener, move |delivery| {
        let (line, done, cut) = (Arc::clone(&line), handle(delivery), Arc::clone(&cut));
        async move {
            let verdict = done.await;
            if !cut.swap(true, Ordering::SeqCst) {
                line.refuse(true);
                line.cut();
            }
            verdict
        }
    });
    place.publish("o-1", "{}").await;
    until("cut", || was_cut.load(Ordering::SeqCst)).await;
    // The server waits for the answer in vain, and has the message ready for the next delivery.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    proxy.refuse(false);
    place.publish("o-2", "{}").await;
    place.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 2, "each once");
    place.leave().await;
}

#[tokio::test]
async fn lst_2_a_line_that_hangs_between_completion_and_acknowledgement_costs_no_second_run() {
    let place = Place::new().await;
    let (proxy, jetstream) = proxy().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let config = Config { ack_wait: Duration::from_secs(1), ..Config::default() };
    let consumer = place.consumer_over(&jetstream, config).await;
    let listener = place.builder(jetstream, consumer).build().await.expect("built");
    let (handle, proxy) = (counting(&place, &runs), Arc::new(proxy));
    let (line, hung) = (Arc::clone(&proxy), Arc::new(AtomicBool::new(false)));
    let is_hung = Arc::clone(&hung);
    let running = start(listener, move |delivery| {
        let (line, done, hung) = (Arc::clone(&line), handle(delivery), Arc::clone(&hung));
        async move {
            let verdict = done.await;
            if !hung.swap(true, Ordering::SeqCst) {
                line.stall(true);
            }
            verdict
        }
    });
    place.publish("o-1", "{}").await;
    until("hung", || is_hung.load(Ordering::SeqCst)).await;
    // The message comes again, to another consumer: the first one's answer is under way all the while.
    let second = place.listener(Config { ack_wait: Duration::from_secs(1), ..Config::default() }).await;
    let second = second.build().await.expect("built");
    let tally = second.tally();
    let other = start(second, counting(&place, &runs));
    until("redelivered", || tally.because(Reason::Replayed) == 1).await;
    proxy.stall(false);
    place.until_done().await;
    other.stop().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    place.leave().await;
}

#[tokio::test]
async fn lst_2_a_consumer_that_dies_between_completion_and_acknowledgement_costs_no_second_run() {
    let place = Place::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let config = || Config { ack_wait: Duration::from_millis(500), ..Config::default() };
    let listener = place.listener(config()).await.build().await.expect("built");
    let (handle, done) = (counting(&place, &runs), Arc::new(Semaphore::new(0)));
    let completed = Arc::clone(&done);
    let running = start(listener, move |delivery| {
        let (completed, work) = (Arc::clone(&completed), handle(delivery));
        async move {
            let _ = work.await;
            completed.add_permits(1);
            std::future::pending().await
        }
    });
    place.publish("o-1", "{}").await;
    drop(done.acquire().await);
    running.die().await;
    let next = place.listener(config()).await.build().await.expect("built");
    let tally = next.tally();
    let running = start(next, counting(&place, &runs));
    place.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!((tally.because(Reason::Replayed), tally.because(Reason::Executed)), (1, 0));
    place.leave().await;
}

/// Without waiting for its request to run out: what was asked for went down with the connection.
#[tokio::test]
async fn lst_2_an_idle_listener_goes_on_over_a_new_connection() {
    let place = Place::new().await;
    let (proxy, jetstream) = proxy().await;
    let runs = Arc::new(AtomicUsize::new(0));
    // What was sent into the old connection comes again soon.
    let config = Config { ack_wait: Duration::from_secs(1), ..Config::default() };
    let consumer = place.consumer_over(&jetstream, config).await;
    let listener = place.builder(jetstream, consumer).build().await.expect("built");
    let running = start(listener, counting(&place, &runs));
    for n in 0..5 {
        place.publish(&format!("o-{n}"), "{}").await;
        until("handled", || runs.load(Ordering::SeqCst) == n + 1).await;
        let lines = proxy.lines();
        proxy.cut();
        until("connected again", || proxy.lines() > lines).await;
    }
    place.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 5);
    place.leave().await;
}

#[tokio::test]
async fn lst_2_connections_cut_all_the_while_run_each_message_once() {
    let place = Place::new().await;
    let (proxy, jetstream) = proxy().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let config = Config { ack_wait: Duration::from_secs(1), ..Config::default() };
    let consumer = place.consumer_over(&jetstream, config).await;
    let listener = place.builder(jetstream, consumer).batch(20).build().await.expect("built");
    let tally = listener.tally();
    let handle = counting(&place, &runs);
    let running = start(listener, move |delivery: Delivery| {
        let work = handle(delivery);
        async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            work.await
        }
    });
    for n in 0..200 {
        place.publish(&format!("o-{n}"), "{}").await;
        if n % 20 == 19 {
            proxy.cut();
        }
    }
    place.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 200);
    assert_eq!(tally.because(Reason::Executed), 200);
    assert!(matches!(Verdict::failed(), Verdict::Nack { .. }) && place.letters().await.is_empty());
    place.leave().await;
}
