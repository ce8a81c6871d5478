// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server itself is killed while messages are handled, and restarts with the data on its disk.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::stream::StorageType;
use retryproof_core::IdempotencyEngine;
use retryproof_core::listener::{Poison, Verdict};
use retryproof_memory::MemoryStore;
use retryproof_nats::Delivery;
use retryproof_testkit::broker::{Seen, Server};
use tokio::sync::Semaphore;

use crate::support::{TestStreams, start, until};

/// How many messages are being handled when the server dies.
const AT_WORK: usize = 8;
/// How many messages have not been fetched when the server dies.
const WAITING: usize = 30;

/// Handles a message with work that waits at the gate.
async fn handle(
    seen: &Seen,
    engine: &IdempotencyEngine,
    delivery: &Delivery,
    gate: &Semaphore,
) -> Result<Verdict, Poison> {
    let body = String::from_utf8_lossy(delivery.payload()).into_owned();
    let work = async || {
        seen.ran(&body);
        gate.acquire().await.map(|permit| permit.forget())
    };
    let verdict = Verdict::of(&engine.execute(delivery.context()?, work).await);
    seen.ended(&body, &verdict);
    Ok(verdict)
}

#[tokio::test]
async fn lst_2_a_server_that_is_killed_and_started_again_loses_no_message_and_repeats_none() {
    let mut server = Server::nats().await.expect("a separate server");
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let streams = TestStreams::at(server.url(), engine.clone(), StorageType::File).await;
    // With a short `ack_wait`, the server soon redelivers what it had delivered before it was
    // killed.
    let config = || Config { ack_wait: Duration::from_secs(3), ..Config::default() };
    let listener = streams.listener(config()).await.prefetch(AT_WORK).build().expect("built");
    let publish = async |bodies: &[String]| {
        for body in bodies {
            streams.publish(body, body).await; // returns once the server has stored the message
        }
    };
    let named =
        |count: usize, name: &str| (0..count).map(|n| format!("{name}-{n}")).collect::<Vec<_>>();

    let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
    let (sees, opens, of_engine) = (seen.clone(), Arc::clone(&gate), engine.clone());
    publish(&named(AT_WORK, "at-work")).await;
    let running = start(listener, move |delivery: Delivery| {
        let (seen, gate, engine) = (sees.clone(), Arc::clone(&opens), of_engine.clone());
        async move { handle(&seen, &engine, &delivery, &gate).await }
    });
    until("its capacity is used up", || seen.runs() == AT_WORK).await;

    // A second listener, which represents another process, completes a message. It dies together
    // with the server, before it answers.
    let listener = streams.listener(config()).await.prefetch(1).build().expect("built");
    let (sees, of_engine) = (seen.clone(), engine.clone());
    let dying = start(listener, move |delivery: Delivery| {
        let (seen, engine) = (sees.clone(), of_engine.clone());
        async move {
            let _ = handle(&seen, &engine, &delivery, &Semaphore::new(1)).await;
            pending().await
        }
    });
    publish(&["completed".to_owned()]).await;
    until("completed", || seen.of("completed").ends.len() == 1).await;
    publish(&named(WAITING, "waiting")).await;
    server.kill().expect("killed");
    dying.die().await;
    gate.add_permits(1_000);
    until("the work continues without a server", || seen.ends() == 1 + AT_WORK).await;
    server.start().await.expect("it comes back");

    until("all are handled", || seen.ends() == 1 + AT_WORK + WAITING).await;
    streams.until_done().await;
    publish(&["new".to_owned()]).await;
    until("a new message too", || seen.of("new").ends.len() == 1).await;
    streams.until_done().await;
    running.stop().await;
    for body in named(AT_WORK, "at-work").into_iter().chain(named(WAITING, "waiting")) {
        assert!(seen.of(&body).is_once(), "{body}: {:?}", seen.of(&body));
    }
    let completed = seen.of("completed");
    assert!(completed.is_once() && completed.ends.len() > 1, "{completed:?}");
    assert!(streams.letters().await.is_empty());
}
