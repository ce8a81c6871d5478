// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliveries that are not from the sender, or from which no key can be read: they are refused and
//! leave no trace.

use axum::http::StatusCode;
use webhooks::signature::Secret;
use webhooks::verify::Trusted;

use crate::world::{Receiver, now, paid, secret};

/// Checks that the event's id is unused: no earlier delivery has left a record, whatever its body
/// was.
async fn is_unused(receiver: &Receiver, id: &str) {
    let event = paid(id, &format!("order-of-{id}"));
    let delivered = receiver.sender().deliver(&event).await;
    assert!(delivered.taken() && !delivered.replayed, "{delivered:?}");
}

/// Checks that the receiver's store has no record of any kind.
async fn has_no_record(receiver: &Receiver) {
    let books = rusqlite::Connection::open(receiver.folder.path().join("webhooks.db")).unwrap();
    let records: u32 =
        books.query_row("SELECT count(*) FROM retryproof_records", [], |row| row.get(0)).unwrap();
    assert_eq!(records, 0);
}

#[tokio::test]
async fn a_delivery_that_is_not_signed_by_the_sender_is_401_and_leaves_no_record() {
    let receiver = Receiver::start().await;
    let (event, now) = (paid("evt_1", "order-666"), now());
    let good = secret().sign(now, event.as_bytes());
    let forger = Secret::new(b"whsec_of_a_forger").unwrap();
    let delivery = || receiver.delivery(event.clone());
    let refused = [
        delivery(),
        delivery().header("webhook-signature", ""),
        delivery().header("webhook-signature", forger.sign(now, event.as_bytes())),
        delivery().header("webhook-signature", secret().sign(now, b"another body")),
        // These signatures are an hour old and an hour in the future.
        delivery().header("webhook-signature", secret().sign(now - 3_600, event.as_bytes())),
        delivery().header("webhook-signature", secret().sign(now + 3_600, event.as_bytes())),
        delivery().header("webhook-signature", &good).header("webhook-signature", &good),
        delivery().header("webhook-signature", good.replace("v1=", "v2=")),
        // An `Idempotency-Key` does not replace the signature.
        delivery().header("idempotency-key", "evt_1"),
    ];
    for request in refused {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(answer.text().await.unwrap(), "the signature is missing or invalid\n");
    }
    has_no_record(&receiver).await;
    assert!(receiver.paid().await.is_empty());
    is_unused(&receiver, "evt_1").await;
    // A duplicate without a valid signature is refused too.
    assert_eq!(delivery().send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_key_that_comes_with_a_delivery_counts_for_nothing() {
    let receiver = Receiver::start().await;
    let event = paid("evt_1", "order-17");
    for (key, replayed) in [("a", false), ("b", true), ("evt_2", true)] {
        let answer = receiver.signed(&event).header("idempotency-key", key).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers().contains_key("idempotent-replayed"), replayed);
    }
    is_unused(&receiver, "evt_2").await;
    assert_eq!(receiver.paid().await, ["order-17", "order-of-evt_2"]);
}

#[tokio::test]
async fn http_2_what_has_no_usable_id_is_400_and_leaves_no_record() {
    let receiver = Receiver::start().await;
    let long = paid(&"x".repeat(256), "o");
    for body in [
        "",
        "no json",
        "[]",
        "{}",
        r#"{"id":7,"type":"x"}"#,
        r#"{"id":null}"#,
        r#"{"id":"","type":"x"}"#,
        r#"{"id":"   ","type":"x"}"#,
        r#"{"id":"a\nb","type":"x"}"#,
        r#"{"id":"\u00e9","type":"x"}"#,
        r#"{"id":"a","id":"b","type":"x"}"#,
        &long,
    ] {
        assert_eq!(
            receiver.signed(body).send().await.unwrap().status(),
            StatusCode::BAD_REQUEST,
            "{body}"
        );
    }
    has_no_record(&receiver).await;
    // An id may contain any printable ASCII characters, and have up to 255 of them, like a key in a
    // header (HTTP-2).
    for id in ["evt 1, \\\"quoted\\\" \\\\", &"x".repeat(255)] {
        is_unused(&receiver, id).await;
    }
}

#[tokio::test]
async fn http_4_a_body_over_the_limit_is_413_before_its_signature_is_looked_at() {
    let receiver = Receiver::start().await;
    let body = " ".repeat((256 << 10) + 1);
    assert_eq!(
        receiver.signed(&body).send().await.unwrap().status(),
        StatusCode::PAYLOAD_TOO_LARGE
    );
    has_no_record(&receiver).await;
}

#[tokio::test]
async fn an_event_that_cannot_be_read_is_refused_and_can_be_mended() {
    let receiver = Receiver::start().await;
    let broken = r#"{"id":"evt_1","type":"payment.succeeded","order":17}"#;
    let answer = receiver.signed(broken).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(!answer.text().await.unwrap().contains("fingerprint-mismatch"));
    is_unused(&receiver, "evt_1").await;
}

#[tokio::test]
async fn a_secret_is_changed_without_losing_a_delivery() {
    let new = Secret::new(b"whsec_from_today").unwrap();
    let receiver = Receiver::trusting(Trusted::with([new.clone(), secret()])).await;
    let event = paid("evt_1", "order-17");
    assert!(receiver.sender().deliver(&event).await.taken());
    let signature = new.sign(now(), event.as_bytes());
    let again =
        receiver.delivery(event).header("webhook-signature", signature).send().await.unwrap();
    assert_eq!(again.status(), StatusCode::OK);
    assert_eq!(receiver.paid().await, ["order-17"]);
}

#[tokio::test]
async fn a_delivery_that_was_overheard_does_nothing_now_and_is_refused_later() {
    let receiver = Receiver::start().await;
    let event = paid("evt_1", "order-17");
    let overheard = secret().sign(now(), event.as_bytes());
    let deliver = |receiver: &Receiver| {
        receiver.delivery(event.clone()).header("webhook-signature", &overheard)
    };
    for _ in 0..2 {
        assert_eq!(deliver(&receiver).send().await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(receiver.paid().await, ["order-17"]);
    // Deliver the event again an hour later, to a receiver that has no record of it.
    let later = Trusted::with([secret()]).by(|| now() + 3_600);
    let later = Receiver::trusting(later).await;
    assert_eq!(deliver(&later).send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    assert!(later.paid().await.is_empty());
}
