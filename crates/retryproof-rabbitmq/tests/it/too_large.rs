// SPDX-License-Identifier: MIT OR Apache-2.0
//! A copy that is too large for the broker ends the channel that all copies share. That copy is
//! reduced; those that were under way at the same time are not (LST-2).

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use retryproof_core::listener::{Backoff, Poison, Verdict};
use retryproof_core::{ExecuteError, Outcome};
use retryproof_rabbitmq::Delivery;
use retryproof_testkit::broker::until;
use tokio::sync::Barrier;

use crate::support::{Running, TestQueues};

/// How many messages are answered at the same moment. One of them is too large to be copied.
const TOGETHER: usize = 16;
const LARGE: usize = TOGETHER / 2;

/// Publishes `m-0`, `m-1` and so on, each with its name as key, body and header. The large message
/// has a header that almost fills the frame of 128 KiB into which all headers have to fit, so no
/// further header fits.
async fn publish_together(queues: &TestQueues) -> HashSet<String> {
    let mut ordinary = HashSet::new();
    for n in 0..TOGETHER {
        let name = format!("m-{n}");
        let trace = if n == LARGE { "a".repeat(131_000) } else { name.clone() };
        let mut headers = FieldTable::default();
        headers.insert("trace".into(), AMQPValue::LongString(trace.into()));
        let properties = BasicProperties::default().with_message_id(name.as_str().into());
        queues.send(name.as_bytes(), properties.with_headers(headers)).await;
        if n != LARGE {
            ordinary.insert(name);
        }
    }
    ordinary
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}

#[tokio::test]
async fn lst_2_a_letter_that_is_too_large_costs_the_letters_beside_it_neither_body_nor_headers() {
    let queues = TestQueues::new().await;
    let ordinary = publish_together(&queues).await;
    let all = Arc::new(Barrier::new(TOGETHER));
    let listener = queues.listener().concurrency(TOGETHER).build().expect("built");
    let running = Running::handling(listener, move |_| {
        let all = Arc::clone(&all);
        async move {
            all.wait().await;
            Err(Poison::Unreadable)
        }
    });
    // A dead letter can arrive twice, because the listener publishes it again if its confirmation
    // was lost.
    let (mut whole, mut large) = (HashSet::new(), false);
    while whole != ordinary || !large {
        let dead = queues.take(&queues.dead()).await;
        let body = text(&dead.body);
        if body == format!("m-{LARGE}") {
            assert_eq!((dead.omitted.as_deref(), dead.trace), (Some("headers"), None));
            large = true;
        } else {
            assert!(ordinary.contains(&body), "{body}: omits {:?}", dead.omitted);
            assert_eq!((dead.omitted, dead.trace.as_ref()), (None, Some(&body)));
            whole.insert(body);
        }
    }
    running.stop().await.expect("stopped");
    assert_eq!(queues.ready(&queues.queue).await, 0);
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_message_that_is_too_large_to_be_delayed_is_a_dead_letter_and_the_others_come_again()
 {
    let queues = TestQueues::new().await;
    let ordinary = publish_together(&queues).await;
    let (all, again) = (Arc::new(Barrier::new(TOGETHER)), Arc::new(Mutex::new(HashSet::new())));
    let soon = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
    let listener = queues.listener().backoff(soon).concurrency(TOGETHER).build().expect("built");
    let seen = Arc::clone(&again);
    let running = Running::start(listener, move |delivery: Delivery| {
        let (all, seen) = (Arc::clone(&all), Arc::clone(&seen));
        async move {
            if delivery.failures() == 0 {
                all.wait().await;
                return Verdict::failed();
            }
            let body = text(delivery.payload());
            assert_eq!(delivery.header("trace").as_ref(), Some(&body));
            seen.lock().expect("unpoisoned").insert(body);
            Verdict::of(&Ok::<_, ExecuteError<()>>(Outcome::Executed(())))
        }
    });
    let dead = queues.take(&queues.dead()).await;
    assert_eq!((text(&dead.body), dead.why.as_deref()), (format!("m-{LARGE}"), Some("failed")));
    assert_eq!((dead.omitted.as_deref(), dead.trace), (Some("headers"), None));
    until("the others come again", || *again.lock().expect("unpoisoned") == ordinary).await;
    running.stop().await.expect("stopped");
    assert_eq!(queues.ready(&queues.dead()).await, 0);
    queues.clean().await;
}
