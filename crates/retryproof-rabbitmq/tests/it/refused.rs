// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings with which a listener does not start.

use std::future::pending;
use std::time::Duration;

use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use retryproof_core::listener::Verdict;
use retryproof_core::{Error, ErrorKind};
use retryproof_rabbitmq::{RabbitmqListener, RabbitmqListenerBuilder, Topology};

use crate::support::{CANARY, PATIENCE, TestQueues, url};

async fn refused(listener: &RabbitmqListener) -> Error {
    listener.run(|_| async { Ok(Verdict::failed()) }, pending()).await.expect_err("refused")
}

/// Returns a builder with all the required settings.
fn listener(url: &str, queue: &str) -> RabbitmqListenerBuilder {
    RabbitmqListener::builder(url, queue, "s").dead_letters("q.dead")
}

#[tokio::test]
async fn lst_2_a_missing_queue_is_refused_before_the_first_message_and_so_are_missing_dead_letters()
{
    let queues = TestQueues::bare().await;
    let listener = queues.listener().build().expect("built");
    let error = refused(&listener).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error.to_string().contains("no such queue") && error.to_string().contains(&queues.queue),
        "{error}"
    );
    let made = queues.channel.queue_declare(
        queues.queue.as_str().into(),
        QueueDeclareOptions::durable(),
        Default::default(),
    );
    made.await.expect("made");
    let error = refused(&listener).await;
    assert!(error.to_string().contains(&queues.dead()), "{error}");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_broker_that_lets_us_in_but_not_consume_is_reported_and_not_asked_for_ever() {
    let queues = TestQueues::bare().await;
    for queue in [queues.queue.clone(), queues.dead()] {
        let made = queues.channel.queue_declare(
            queue.as_str().into(),
            QueueDeclareOptions::durable(),
            Default::default(),
        );
        made.await.expect("made");
    }
    // Another consumer holds the queue exclusively.
    let alone = BasicConsumeOptions { exclusive: true, ..BasicConsumeOptions::default() };
    let theirs = queues.channel.basic_consume(
        queues.queue.as_str().into(),
        "".into(),
        alone,
        Default::default(),
    );
    let theirs = theirs.await.expect("consuming");
    let listener = queues.listener().build().expect("built");
    let error = tokio::time::timeout(PATIENCE, refused(&listener)).await.expect("in time");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("refused"), "{error}");
    drop(theirs);
    queues.clean().await;
}

#[tokio::test]
async fn id_4_urls_are_refused_without_their_password() {
    for bad in
        [format!("amqp://user:{CANARY}@"), format!("http://user:{CANARY}@localhost"), CANARY.into()]
    {
        let error = listener(&bad, "q").build().expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
    }
    let built = listener(&format!("amqp://user:{CANARY}@localhost"), "q").build().expect("built");
    assert!(!format!("{built:?}").contains(CANARY));
    // After the broker has refused a login, the listener does not try again.
    let url = url();
    let address = url.rsplit_once('@').expect("a server").1;
    let wrong = listener(&format!("amqp://user:{CANARY}@{address}"), "q").build().expect("built");
    let error = refused(&wrong).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
}

#[test]
fn ctx_2_id_3_a_builder_refuses_what_is_out_of_bounds() {
    let of = |queue: &str| listener("amqp://localhost", queue);
    assert!(of("q").build().is_ok());
    assert!(of("").build().is_err());
    assert!(of(&"q".repeat(231)).build().is_err());
    assert!(of("q").dead_letters("").build().is_err());
    assert!(of("q").prefetch(0).build().is_err());
    assert!(of("q").max_attempts(0).build().is_err());
    let error = of("q").lease(Duration::ZERO).build().expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let bare = |scope: &'static str| RabbitmqListener::builder("amqp://localhost", "q", scope);
    assert!(bare("").dead_letters("q.dead").build().is_err());
    let error = bare("s").build().expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("no queue for dead letters is set"), "{error}");
}

#[test]
fn lst_2_cfg_1_dead_letters_in_the_work_queue_or_its_wait_queues_are_refused() {
    let of = |queue, dead| listener("amqp://localhost", queue).dead_letters(dead).build();
    for (dead, why) in
        [("q", "work queue"), ("q.wait.1s", "wait queue"), ("q.wait.131072s", "wait queue")]
    {
        let error = of("q", dead).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        let message = error.to_string();
        assert!(
            message.contains(why) && message.contains(&format!("dead_letters = {dead}")),
            "{message}"
        );
    }
    for dead in ["q.dead", "q.wait.3s", "q.wait.262144s", "q.wait", "p.wait.1s"] {
        assert!(of("q", dead).is_ok(), "{dead}");
    }
}

#[tokio::test]
async fn lst_2_a_topology_is_made_once_and_never_over_another() {
    let queues = TestQueues::new().await;
    let topology = Topology::new(&queues.queue);
    topology.declare(&url()).await.expect("there already");
    let error = topology.delivery_limit(5).declare(&url()).await.expect_err("another limit");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("different arguments"), "{error}");
    queues.clean().await;
}
