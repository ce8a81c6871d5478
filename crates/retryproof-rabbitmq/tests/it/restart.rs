// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker itself is killed while messages are handled, and restarts with the data on its disk.

use std::sync::Arc;

use retryproof_core::IdempotencyEngine;
use retryproof_core::listener::{Reason, Verdict};
use retryproof_memory::MemoryStore;
use retryproof_rabbitmq::Delivery;
use retryproof_testkit::broker::{Seen, Server};
use tokio::sync::{Semaphore, watch};

use crate::support::{Running, TestQueues, eventually};

/// How many messages are being handled when the broker dies, besides the one whose work is
/// complete.
const AT_WORK: usize = 7;
/// How many messages have not been delivered when the broker dies.
const WAITING: usize = 30;

#[tokio::test]
async fn lst_2_a_broker_that_is_killed_and_started_again_loses_no_message_and_repeats_none() {
    let mut server = Server::rabbitmq().await.expect("a separate broker");
    let queues = TestQueues::new_at(server.url()).await;
    let queue = queues.queue.clone();
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let listener = queues.listener_at(server.url()).concurrency(AT_WORK + 1);
    let listener = listener.build().expect("built");
    let numbered =
        |count: usize, name: &'static str| (0..count).map(move |n| format!("{name}-{n}"));
    let mut bodies = vec!["completed".to_owned()];
    bodies.extend(numbered(AT_WORK, "at-work").chain(numbered(WAITING, "waiting")));
    for body in &bodies {
        queues.publish(body, body).await; // returns once the broker has stored the message
    }

    let (seen, gate, dead) =
        (Seen::default(), Arc::new(Semaphore::new(0)), watch::Sender::new(false));
    let (sees, opens, dies) = (seen.clone(), Arc::clone(&gate), dead.subscribe());
    let running = Running::start(listener, move |delivery: Delivery| {
        let (call, seen, gate) =
            (engine.call(delivery.context().expect("a key")), sees.clone(), Arc::clone(&opens));
        let (mut dead, body) =
            (dies.clone(), String::from_utf8_lossy(delivery.payload()).into_owned());
        async move {
            let work = async || {
                seen.ran(&body);
                if body == "completed" {
                    Ok(())
                } else {
                    gate.acquire().await.map(|permit| permit.forget())
                }
            };
            let verdict = Verdict::of(&call.execute(work).await);
            seen.ended(&body, &verdict);
            // The result of this message is stored, but the handler returns the verdict only after
            // the broker was killed.
            if body == "completed" {
                drop(dead.wait_for(|dead| *dead).await);
            }
            verdict
        }
    });
    eventually("one is completed, the others are in progress", async || {
        (seen.runs(), seen.ends()) == (1 + AT_WORK, 1)
    })
    .await;
    server.until_kept(&queue).await.expect("kept");
    server.until_kept(&queues.dead()).await.expect("kept");
    server.kill().expect("killed");
    dead.send_replace(true);
    gate.add_permits(1_000);
    eventually("the work continues without a broker", async || seen.ends() == 1 + AT_WORK).await;
    server.start().await.expect("it comes back");

    eventually("all are handled", async || seen.ends() == 1 + AT_WORK + WAITING).await;
    // The test's own connection was lost with the broker, so open a new one.
    let queues = TestQueues::again(server.url(), &queue).await;
    queues.publish("new", "new").await;
    eventually("a new message too", async || seen.of("new").runs == 1).await;
    let again = AT_WORK as u64 + 1;
    eventually("those whose answers were lost are redelivered", async || {
        running.counters.count_of(Reason::Replayed) >= again
    })
    .await;
    eventually("nothing is left", async || queues.ready(&queue).await == 0).await;
    running.stop().await.expect("stopped");
    for body in bodies.iter().map(String::as_str).chain(["new"]) {
        assert!(seen.of(body).is_once(), "{body}: {:?}", seen.of(body));
    }
    assert!(seen.of("completed").ends.len() > 1, "it came again");
    assert_eq!((queues.ready(&queue).await, queues.ready(&queues.dead()).await), (0, 0));
}
