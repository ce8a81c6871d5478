// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shop as a process, in front of a payments service whose charges are counted and can be
//! delayed.

mod world;

use axum::http::StatusCode;
use retryproof_testkit::folder::Folder;
use retryproof_testkit::wire::WireProxy;

use crate::world::{Customer, Payments, Shop};

#[tokio::test]
async fn http_8_an_order_that_is_repeated_is_paid_once_under_a_key_of_the_shops() {
    let (payments, folder) = (Payments::start().await, Folder::new("shop").unwrap());
    let shop = Shop::start(payments.address, &folder, 60).await;
    let customer = Customer::of(&shop);
    let first = customer.orders("order-17", 4_200).await;
    let again = customer.orders("order-17", 4_200).await;
    assert_eq!((first.status, again.status), (StatusCode::CREATED, StatusCode::CREATED));
    assert!(!first.replayed && again.replayed && first.body == again.body);
    assert_eq!(first.body, r#"{"reference":"a bicycle bell","payment":1}"#);
    let charges = payments.charges();
    assert_eq!(charges.len(), 1);
    assert!(charges[0].key.len() == 64 && !charges[0].key.contains("order-17"), "{charges:?}");
}

#[tokio::test]
async fn http_12_an_answer_of_the_payments_service_that_is_lost_is_asked_for_again() {
    let (payments, folder) = (Payments::start().await, Folder::new("shop").unwrap());
    let proxy = WireProxy::to(payments.address).await.unwrap();
    let shop = Shop::start(proxy.addr(), &folder, 60).await;
    let customer = Customer::of(&shop);
    payments.hold_answers(true);
    let order = tokio::spawn(async move { customer.orders("order-17", 4_200).await });
    payments.until_charges(1).await;
    proxy.cut();
    payments.hold_answers(false);
    assert_eq!(order.await.unwrap().status, StatusCode::CREATED);
    assert_eq!(payments.charges().len(), 1);
    // The shop sent the same key at least twice, so all requests after the first were duplicates.
    let asked = payments.asked();
    assert!(asked.len() >= 2 && asked.iter().all(|key| *key == asked[0]), "{asked:?}");
}

#[tokio::test]
async fn acq_2_a_shop_that_is_killed_after_the_charge_pays_nothing_twice() {
    let (payments, folder) = (Payments::start().await, Folder::new("shop").unwrap());
    let first = Shop::start(payments.address, &folder, 60).await;
    let customer = Customer::of(&first);
    payments.hold_answers(true);
    let lost = tokio::spawn(async move { customer.tries("order-17", 4_200).await });
    payments.until_charges(1).await;
    first.kill().await;
    assert!(lost.await.unwrap().is_none(), "the customer has no answer");
    payments.hold_answers(false);
    let second = Shop::start(payments.address, &folder, 60).await;
    // The retry waits until the killed shop's lease ends, and then takes over with the same key.
    let answer = Customer::of(&second).orders("order-17", 4_200).await;
    assert_eq!((answer.status, answer.replayed), (StatusCode::CREATED, false));
    assert_eq!(payments.charges().len(), 1);
    let asked = payments.asked();
    assert!(asked.len() >= 2 && asked.iter().all(|key| *key == asked[0]), "{asked:?}");
}

#[tokio::test]
async fn http_7_what_is_declined_is_declined_for_good() {
    let (payments, folder) = (Payments::start().await, Folder::new("shop").unwrap());
    let shop = Shop::start(payments.address, &folder, 60).await;
    let customer = Customer::of(&shop);
    for replayed in [false, true] {
        let answer = customer.orders("order-17", -1).await;
        assert_eq!((answer.status, answer.replayed), (StatusCode::PAYMENT_REQUIRED, replayed));
        assert_eq!(answer.body, "declined: the amount must be positive\n");
    }
    assert_eq!((payments.charges().len(), payments.asked().len()), (0, 1));
}

#[tokio::test]
async fn http_7_an_order_without_word_on_its_payment_can_be_repeated_at_once() {
    let (payments, folder) = (Payments::start().await, Folder::new("shop").unwrap());
    let proxy = WireProxy::to(payments.address).await.unwrap();
    let shop = Shop::start(proxy.addr(), &folder, 1).await;
    let customer = Customer::of(&shop);
    proxy.refuse(true);
    let answer = customer.tries("order-17", 4_200).await.expect("an answer");
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    proxy.refuse(false);
    // The customer's client repeats the order until the payment is confirmed, because the shop's
    // patience of one second may be too short on a busy machine.
    let answer = customer.orders("order-17", 4_200).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(payments.charges().len(), 1);
}

#[tokio::test]
async fn fp_1_an_order_that_is_changed_after_its_charge_is_unclear_and_not_declined() {
    let (payments, folder) = (Payments::start().await, Folder::new("shop").unwrap());
    let first = Shop::start(payments.address, &folder, 60).await;
    let customer = Customer::of(&first);
    payments.hold_answers(true);
    let lost = tokio::spawn(async move { customer.tries("order-17", 100).await });
    payments.until_charges(1).await;
    first.kill().await;
    assert!(lost.await.unwrap().is_none(), "the customer has no answer");
    payments.hold_answers(false);
    let second = Shop::start(payments.address, &folder, 60).await;
    let customer = Customer::of(&second);
    let changed = loop {
        // The order is in flight until the killed shop's lease ends.
        let answer = customer.tries("order-17", 200).await.expect("an answer");
        if answer.status != StatusCode::CONFLICT {
            break answer;
        }
    };
    assert_eq!(
        (changed.status, &*changed.body),
        (StatusCode::BAD_GATEWAY, "the result of the payment is unclear; we will check it\n")
    );
    // The unclear result is not final: repeating the original order finds its charge.
    let answer = customer.orders("order-17", 100).await;
    assert_eq!((answer.status, answer.replayed), (StatusCode::CREATED, false));
    assert_eq!(payments.charges().len(), 1);
}

#[tokio::test]
async fn http_7_what_a_proxy_says_is_no_word_of_the_payments_service() {
    let (payments, folder) = (Payments::start().await, Folder::new("shop").unwrap());
    let shop = Shop::start(payments.address, &folder, 60).await;
    let customer = Customer::of(&shop);
    for status in [StatusCode::NOT_FOUND, StatusCode::UNAUTHORIZED] {
        payments.lead_astray(Some(status));
        let answer = customer.tries("order-17", 4_200).await.expect("an answer");
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{status}");
    }
    payments.lead_astray(None);
    let answer = customer.orders("order-17", 4_200).await;
    assert_eq!((answer.status, answer.replayed), (StatusCode::CREATED, false));
    assert_eq!(payments.charges().len(), 1);
}

#[tokio::test]
async fn bad_arguments_name_what_is_wrong() {
    for (args, part) in [
        (&["--lisen", "x"][..], "--lisen"),
        (&["--listen", "nowhere"], "nowhere"),
        (&["--patience"], "needs a value"),
        (&["--patience", "long"], "long"),
    ] {
        let (code, said) = world::refusal(args).await;
        assert!(code == Some(2) && said.contains(part), "{args:?}: {said}");
    }
    let (code, said) = world::refusal(&["--store", "memory:", "--patience", "0"]).await;
    assert!(code == Some(1) && said.contains("deadline"), "{said}");
}
