// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliveries that are repeated, concurrent, changed, or sent before their receiver is ready.

use std::time::Duration;

use axum::http::StatusCode;
use tokio::task::JoinSet;

use crate::world::{Gate, Receiver, client, impatient, now, paid, secret};

#[tokio::test]
async fn lst_1_a_duplicate_is_answered_200_and_nothing_runs() {
    let receiver = Receiver::start().await;
    let event = paid("evt_1", "order-17");
    let first = receiver.sender().deliver(&event).await;
    assert!(first.taken() && !first.replayed);
    // Each delivery has a new signature, sometimes with another timestamp, but the event is the
    // same.
    for age in 0..3 {
        let signature = secret().sign(now() - age, event.as_bytes());
        let again = receiver
            .delivery(event.clone())
            .header("webhook-signature", signature)
            .send()
            .await
            .unwrap();
        assert_eq!(again.status(), StatusCode::OK);
        assert!(again.headers().contains_key("idempotent-replayed"));
    }
    assert_eq!(receiver.paid().await, ["order-17"]);
    assert!(receiver.sender().deliver(&paid("evt_2", "order-18")).await.taken());
    assert_eq!(receiver.paid().await, ["order-17", "order-18"]);
}

#[tokio::test]
async fn acq_2_deliveries_at_the_same_instant_run_once() {
    let receiver = Receiver::start().await;
    let mut senders = JoinSet::new();
    for number in 0..40 {
        let (sender, event) = (
            receiver.sender(),
            paid(&format!("evt_{}", number % 4), &format!("order-{}", number % 4)),
        );
        senders.spawn(async move { sender.deliver(&event).await });
    }
    let mut executed = 0;
    while let Some(delivered) = senders.join_next().await {
        let delivered = delivered.unwrap();
        assert!(delivered.taken(), "{delivered:?}");
        executed += u32::from(!delivered.replayed);
    }
    assert_eq!(executed, 4);
    let mut orders = receiver.paid().await;
    orders.sort();
    assert_eq!(orders, ["order-0", "order-1", "order-2", "order-3"]);
}

#[tokio::test]
async fn lst_1_a_delivery_that_is_in_flight_is_left_to_the_senders_retry() {
    let (gate, url) = Gate::serve(false, 0).await;
    let event = paid("evt_1", "order-17");
    let first = tokio::spawn({
        let (sender, event) = (impatient(url.clone()), event.clone());
        async move { sender.deliver(&event).await }
    });
    gate.until_started(1).await;
    let signature = secret().sign(now(), event.as_bytes());
    let answer = client()
        .post(&url)
        .header("webhook-signature", signature)
        .body(event.clone())
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::CONFLICT);
    assert!(answer.headers().contains_key("retry-after"));
    let retried = tokio::spawn(async move { impatient(url).deliver(&event).await });
    gate.open.send_replace(true);
    let (first, retried) = (first.await.unwrap(), retried.await.unwrap());
    assert!(
        first.taken() && !first.replayed && retried.taken() && retried.replayed,
        "{first:?} {retried:?}"
    );
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn http_12_a_sender_that_hung_up_finds_its_event_handled() {
    let (gate, url) = Gate::serve(false, 0).await;
    let event = paid("evt_1", "order-17");
    let delivery = tokio::spawn({
        let (sender, event) = (impatient(url.clone()), event.clone());
        async move { sender.deliver(&event).await }
    });
    gate.until_started(1).await;
    // Aborting the delivery closes its connection.
    delivery.abort();
    assert!(delivery.await.is_err_and(|ended| ended.is_cancelled()));
    gate.open.send_replace(true);
    let retried = impatient(url).deliver(&event).await;
    assert!(retried.taken() && retried.replayed, "{retried:?}");
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn run_4_an_event_that_was_not_taken_is_delivered_again_and_runs_again() {
    let (gate, url) = Gate::serve(true, 2).await;
    let delivered = impatient(url).deliver(&paid("evt_1", "order-17")).await;
    assert!(delivered.taken() && !delivered.replayed);
    let statuses: Vec<_> = delivered.answers.iter().flatten().map(StatusCode::as_u16).collect();
    assert_eq!(statuses, [503, 503, 200]);
    assert_eq!(gate.runs(), 3);
}

#[tokio::test]
async fn fp_1_another_body_under_the_same_id_is_refused() {
    let receiver = Receiver::start().await;
    assert!(receiver.sender().deliver(&paid("evt_1", "order-17")).await.taken());
    let other = receiver.signed(&paid("evt_1", "order-18")).send().await.unwrap();
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(other.text().await.unwrap().contains("fingerprint-mismatch"));
    assert_eq!(receiver.paid().await, ["order-17"]);
}

#[tokio::test]
async fn an_event_of_a_kind_that_we_do_not_know_is_taken_and_changes_nothing() {
    let receiver = Receiver::start().await;
    let delivered =
        receiver.sender().deliver(r#"{"id":"evt_9","type":"payment.pondered","why":[1]}"#).await;
    assert_eq!(delivered.answers.len(), 1);
    assert!(delivered.taken() && receiver.paid().await.is_empty());
}

#[tokio::test]
async fn sto_5_while_the_database_is_locked_the_sender_goes_on_and_then_it_is_taken_once() {
    let receiver = Receiver::start().await;
    let locked = rusqlite::Connection::open(receiver.folder.path().join("webhooks.db")).unwrap();
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let sender =
        receiver.sender().paced(Duration::from_millis(300), vec![Duration::from_millis(20); 5_000]);
    let event = paid("evt_1", "order-17");
    let delivery = tokio::spawn(async move { sender.deliver(&event).await });
    // Wait until the sender has given up the first delivery.
    tokio::time::sleep(Duration::from_millis(500)).await;
    locked.execute_batch("ROLLBACK").unwrap();
    let delivered = delivery.await.unwrap();
    assert!(delivered.taken(), "{delivered:?}");
    assert_eq!(receiver.paid().await, ["order-17"]);
}
