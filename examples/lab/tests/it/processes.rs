// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several processes on one store: waiting, takeover, and the refused completion of a holder that
//! another process has replaced.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::client::{Ask, runs, until_runs};
use crate::place::Place;
use crate::server::Lab;

#[tokio::test]
async fn acq_4_a_duplicate_in_another_process_gets_the_result() {
    let place = Place::shared();
    let (a, b) = (Lab::start_on(&place.url).await, Lab::start_on(&place.url).await);
    let ask = Ask::post("/lab/std").key("k").script(&json!({ "tag": "both", "delay_ms": 700 }));
    let first = {
        let (ask, server) = (ask.clone(), a.address);
        tokio::spawn(async move { ask.send(server).await })
    };
    until_runs(a.address, "both", (1, 0, 0)).await;
    let waited = ask.send(b.address).await;
    let first = first.await.unwrap();
    assert!(waited.is_replay() && !first.is_replay());
    assert_eq!(waited.repeated(), first.repeated());
    assert_eq!(runs(b.address, "both").await, (0, 0, 0));
}

#[tokio::test]
async fn acq_2_a_killed_holder_is_taken_over_after_its_lease_and_never_before() {
    let place = Place::shared();
    let (a, b) = (Lab::start_on(&place.url).await, Lab::start_on(&place.url).await);
    let holder =
        Ask::post("/lab/patient").key("k").script(&json!({ "tag": "dead", "delay_ms": 60_000 }));
    let server = a.address;
    // The holder's lease of PT2S begins after this instant.
    let begin = Instant::now();
    let sent = tokio::spawn(async move {
        let stream = tokio::net::TcpStream::connect(server).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let mut request = holder.request(server);
        *request.uri_mut() = "/lab/patient".parse().unwrap();
        request.headers_mut().insert("host", server.to_string().parse().unwrap());
        sender.send_request(request).await.is_err()
    });
    until_runs(a.address, "dead", (1, 0, 0)).await;
    a.kill().await;
    assert!(sent.await.unwrap(), "its client's connection broke");
    // No fingerprint is compared until the record is complete. This request, whose body differs
    // from the holder's, therefore waits and takes over.
    let ask = Ask::post("/lab/patient").key("k").script(&json!({ "tag": "taker" }));
    let answer = ask.send(b.address).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(!answer.is_replay());
    assert!(
        begin.elapsed() >= Duration::from_secs(2),
        "taken over before the lease was over: {:?}",
        begin.elapsed()
    );
    assert!(begin.elapsed() < Duration::from_secs(6), "taken over late: {:?}", begin.elapsed());
    assert_eq!(runs(b.address, "taker").await, (1, 1, 0));
}

#[tokio::test]
async fn cmp_2_a_paused_holder_is_refused_and_answered_with_the_takers_result() {
    let place = Place::shared();
    let (a, b) = (Lab::start_on(&place.url).await, Lab::start_on(&place.url).await);
    let slow =
        Ask::post("/lab/patient").key("k").script(&json!({ "tag": "zombie", "delay_ms": 1_000 }));
    let zombie = {
        let (slow, server) = (slow.clone(), a.address);
        tokio::spawn(async move { slow.send(server).await })
    };
    until_runs(a.address, "zombie", (1, 0, 0)).await;
    a.signal("STOP").await;
    let taken = slow.send(b.address).await;
    assert!(!taken.is_replay(), "B ran it after the lease of PT2S");
    sleep(Duration::from_millis(50)).await;
    a.signal("CONT").await;
    let late = zombie.await.unwrap();
    assert!(late.is_replay(), "the zombie's own answer is not sent: {late:?}");
    assert_eq!(late.repeated(), taken.repeated());
    assert_eq!(
        slow.send(b.address).await.repeated(),
        taken.repeated(),
        "nothing was overwritten (CMP-6)"
    );
}

#[tokio::test]
async fn run_1_a_handler_of_many_leases_keeps_its_lease_against_another_process() {
    let place = Place::shared();
    let (a, b) = (Lab::start_on(&place.url).await, Lab::start_on(&place.url).await);
    // The handler runs for more than three leases of PT2S.
    let ask =
        Ask::post("/lab/patient").key("k").script(&json!({ "tag": "long", "delay_ms": 6_500 }));
    let first = {
        let (ask, server) = (ask.clone(), a.address);
        tokio::spawn(async move { ask.send(server).await })
    };
    until_runs(a.address, "long", (1, 0, 0)).await;
    let waited = ask.send(b.address).await;
    assert!(waited.is_replay(), "{waited:?}");
    assert_eq!(waited.repeated(), first.await.unwrap().repeated());
    assert_eq!(runs(b.address, "long").await, (0, 0, 0));
}

#[tokio::test]
async fn sto_1_records_outlive_the_process() {
    let place = Place::shared();
    let ask =
        Ask::post("/lab/std").key("k").script(&json!({ "headers": [["x-a", "1"], ["x-a", "2"]] }));
    let first = Lab::start_on(&place.url).await;
    let answer = ask.send(first.address).await;
    first.kill().await;
    let second = Lab::start_on(&place.url).await;
    let replay = ask.send(second.address).await;
    assert!(replay.is_replay());
    assert_eq!(replay.repeated(), answer.repeated());
}
