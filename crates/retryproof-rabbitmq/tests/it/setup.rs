// SPDX-License-Identifier: MIT OR Apache-2.0
//! Start and stop: what is rejected before the first message, and how a consumer ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use retryproof_core::listener::Reason;
use retryproof_core::listener::Verdict;
use retryproof_core::{Error, ErrorKind, IdempotencyEngine};
use retryproof_memory::MemoryStore;
use retryproof_rabbitmq::{Consumer, Topology};
use tokio::sync::Notify;

use crate::broker_away::proxied;
use crate::support::{CANARY, Desk, PATIENCE, Running, eventually, url};

async fn refused<T: Send + 'static>(consumer: &Consumer<T>) -> Error {
    consumer.run_with(|_| async { Verdict::failed() }).await.expect_err("refused")
}

#[tokio::test]
async fn lst_2_a_missing_queue_is_refused_before_the_first_message_and_so_are_missing_dead_letters()
{
    let desk = Desk::bare().await;
    let consumer = desk.consumer().build().expect("built");
    let error = refused(&consumer).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error.to_string().contains("no such queue") && error.to_string().contains(&desk.queue),
        "{error}"
    );
    let made = desk.channel.queue_declare(
        desk.queue.as_str().into(),
        QueueDeclareOptions::durable(),
        Default::default(),
    );
    made.await.expect("made");
    let error = refused(&consumer).await;
    assert!(error.to_string().contains(&desk.dead()), "{error}");
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_a_broker_that_lets_us_in_but_not_consume_is_reported_and_not_asked_for_ever() {
    let desk = Desk::bare().await;
    for queue in [desk.queue.clone(), desk.dead()] {
        let made = desk.channel.queue_declare(
            queue.as_str().into(),
            QueueDeclareOptions::durable(),
            Default::default(),
        );
        made.await.expect("made");
    }
    // Another consumer has the queue exclusively.
    let alone = BasicConsumeOptions { exclusive: true, ..BasicConsumeOptions::default() };
    let theirs = desk.channel.basic_consume(
        desk.queue.as_str().into(),
        "".into(),
        alone,
        Default::default(),
    );
    let theirs = theirs.await.expect("consuming");
    let consumer = desk.consumer().build().expect("built");
    let error = tokio::time::timeout(PATIENCE, refused(&consumer)).await.expect("in time");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("refuses"), "{error}");
    drop(theirs);
    desk.clean().await;
}

#[tokio::test]
async fn id_4_urls_are_refused_without_their_password() {
    for bad in
        [format!("amqp://user:{CANARY}@"), format!("http://user:{CANARY}@localhost"), CANARY.into()]
    {
        let error = Consumer::builder(&bad, "q", "s").build().expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
    }
    let consumer = Consumer::builder(&format!("amqp://user:{CANARY}@localhost"), "q", "s")
        .build()
        .expect("built");
    assert!(!format!("{consumer:?}").contains(CANARY));
    // After a refused login, the consumer does not try again.
    let url = url();
    let address = url.rsplit_once('@').expect("a server").1;
    let wrong = Consumer::builder(&format!("amqp://user:{CANARY}@{address}"), "q", "s")
        .build()
        .expect("built");
    let error = refused(&wrong).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
}

#[test]
fn ctx_2_id_3_a_builder_refuses_what_is_out_of_bounds() {
    let of = |queue: &str| Consumer::builder("amqp://localhost", queue, "s");
    assert!(of("q").build().is_ok());
    assert!(of("").build().is_err());
    assert!(of(&"q".repeat(231)).build().is_err());
    assert!(of("q").dead_letters("").build().is_err());
    assert!(of("q").prefetch(0).build().is_err());
    assert!(of("q").max_attempts(0).build().is_err());
    let error = of("q").lease(Duration::ZERO).build().expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(Consumer::builder("amqp://localhost", "q", "").build().is_err());
}

#[tokio::test]
async fn lst_2_a_topology_is_made_once_and_never_over_another() {
    let desk = Desk::new().await;
    let topology = Topology::new(&desk.queue);
    topology.declare(&url()).await.expect("there already");
    let error = topology.delivery_limit(5).declare(&url()).await.expect_err("another limit");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("other arguments"), "{error}");
    desk.clean().await;
}

#[tokio::test]
async fn run_5_a_stopped_consumer_ends_its_work_and_gives_back_the_rest() {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (says, gate, of_engine) = (Arc::clone(&begun), Arc::clone(&go), engine.clone());
    let consumer = desk.consumer().concurrency(1).build().expect("built");
    let stopper = consumer.stopper();
    let running = Running::start(&consumer, move |incoming| {
        let (call, says, gate) =
            (of_engine.call(incoming.ctx), Arc::clone(&says), Arc::clone(&gate));
        async move {
            let run = async || {
                says.notify_one();
                gate.notified().await;
                Ok::<_, std::io::Error>(())
            };
            Verdict::of(&call.execute(run).await)
        }
    });
    for n in 0..10 {
        desk.publish(&format!("k{n}"), "paid").await;
    }
    begun.notified().await;
    stopper.stop();
    go.notify_one();
    let counters = Arc::clone(&running.counters);
    running.stop().await.expect("stopped");
    assert_eq!(counters.read().acks, 1);
    let runs = Arc::new(AtomicUsize::new(0));
    let rest = Running::counting(&desk.consumer().build().expect("built"), &engine, &runs);
    rest.answered(Reason::Executed, 9).await;
    rest.stop().await.expect("stopped");
    assert_eq!(runs.load(Ordering::SeqCst), 9);
    desk.clean().await;
}

#[tokio::test]
async fn run_5_a_stopped_consumer_gives_back_nothing_that_would_count_as_redelivered() {
    let desk = Desk::new().await;
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&go));
    let begins = Arc::clone(&begun);
    for n in 0..10 {
        desk.publish(&format!("k{n}"), "paid").await;
    }
    let (proxy, through) = proxied().await;
    let consumer = Consumer::builder(&through, &desk.queue, "rabbitmq.tests")
        .concurrency(2)
        .build()
        .expect("built");
    let done = || {
        Verdict::of(&Ok::<_, retryproof_core::ExecuteError<()>>(
            retryproof_core::Outcome::Executed(()),
        ))
    };
    let stopper = consumer.stopper();
    let running = Running::start(&consumer, move |_| {
        begins.fetch_add(1, Ordering::SeqCst);
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.expect("open").forget();
            done()
        }
    });
    eventually("two are in work", async || begun.load(Ordering::SeqCst) == 2).await;
    let said = proxy.flights();
    stopper.stop();
    eventually("it asks for no more, and the broker knows", async || proxy.flights() > said).await;
    go.add_permits(10);
    running.stop().await.expect("stopped");
    assert_eq!((begun.load(Ordering::SeqCst), desk.ready(&desk.queue).await), (2, 8));
    let again = Arc::new(AtomicUsize::new(0));
    let redelivered = Arc::clone(&again);
    let rest = Running::start(&desk.consumer().build().expect("built"), move |incoming| {
        redelivered.fetch_add(usize::from(incoming.message.redelivered()), Ordering::SeqCst);
        async move { done() }
    });
    rest.answered(Reason::Executed, 8).await;
    assert_eq!(again.load(Ordering::SeqCst), 0);
    rest.stop().await.expect("stopped");
    desk.clean().await;
}

#[tokio::test]
async fn run_5_work_that_outlasts_the_drain_is_dropped_and_comes_again() {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let begun = Arc::new(Notify::new());
    let (says, of_engine) = (Arc::clone(&begun), engine.clone());
    let consumer =
        desk.consumer().lease(Duration::from_secs(1)).drain_timeout(Duration::from_millis(50));
    let running = Running::start(&consumer.build().expect("built"), move |incoming| {
        let (call, says) = (of_engine.call(incoming.ctx), Arc::clone(&says));
        async move {
            let run = async || {
                says.notify_one();
                std::future::pending::<Result<(), ()>>().await
            };
            Verdict::of(&call.execute(run).await)
        }
    });
    desk.publish("k", "paid").await;
    begun.notified().await;
    running.stop().await.expect("stopped");
    let runs = Arc::new(AtomicUsize::new(0));
    let next = Running::counting(&desk.consumer().build().expect("built"), &engine, &runs);
    next.answered(Reason::Executed, 1).await;
    next.stop().await.expect("stopped");
    desk.clean().await;
}
