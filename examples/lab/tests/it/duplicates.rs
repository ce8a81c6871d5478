// SPDX-License-Identifier: MIT OR Apache-2.0
//! Duplicates: one run, and the same answer for every other request.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{Ask, h2, runs, until_runs};
use crate::place::{Folder, Place, chosen};
use crate::server::Lab;

/// Time limits that all calls of the herd keep even on a busy machine, because the test checks that
/// the lab copes, not how fast it is.
const UNHURRIED: &str = "[idempotency]\noperation-timeout = 'PT25S'\nscope.'lab.std'.wait = \
     'PT25S'\nscope.'lab.std'.lease = 'PT25S'\n";

/// Runs `LAB_ROUNDS` rounds of 100 concurrent duplicates, or 1,000 rounds if this variable is not
/// set. 30 keys are used at a time in memory, and 5 on other stores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_5_http_8_a_hundred_concurrent_duplicates_run_once_and_99_are_replayed() {
    let (place, folder) = (Place::new(), Folder::new());
    let file = folder.path().join("lab.toml");
    let is_memory = chosen() == "memory";
    std::fs::write(&file, UNHURRIED).unwrap();
    let lab =
        Lab::start_with(&["--store", &place.url, "--config", file.to_str().unwrap()], &[]).await;
    let rounds: usize =
        std::env::var("LAB_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000);
    let at_once = if is_memory { 30 } else { 5 };
    let script = json!({ "tag": "herd", "delay_ms": 300 });
    for batch in (0..rounds).collect::<Vec<_>>().chunks(at_once) {
        let mut keys = JoinSet::new();
        for round in batch {
            let (server, ask) =
                (lab.address, Ask::post("/lab/std").key(format!("herd-{round}")).script(&script));
            keys.spawn(async move {
                let connection = h2(server).await;
                let mut callers = JoinSet::new();
                for _ in 0..100 {
                    let (ask, connection) = (ask.clone(), connection.clone());
                    callers.spawn(async move { ask.send_h2(server, &connection).await });
                }
                let answers = callers.join_all().await;
                let first = answers[0].repeated();
                let other = answers.iter().find(|answer| answer.repeated() != first);
                assert!(other.is_none(), "all answers are equal: {:?}, {other:?}", answers[0]);
                assert_eq!(first.0, StatusCode::OK);
                answers.iter().filter(|answer| answer.is_replay()).count()
            });
        }
        assert!(keys.join_all().await.iter().all(|replays| *replays == 99));
    }
    assert_eq!(runs(lab.address, "herd").await, (rounds as u64, rounds as u64, 0));
}

#[tokio::test]
async fn http_10_a_zero_wait_answers_in_flight_at_once_with_retry_after() {
    let lab = Lab::start().await;
    let ask = Ask::post("/lab/now").key("k").script(&json!({ "tag": "now", "delay_ms": 1_500 }));
    let holder = {
        let (ask, server) = (ask.clone(), lab.address);
        tokio::spawn(async move { ask.send(server).await })
    };
    until_runs(lab.address, "now", (1, 0, 0)).await;
    let turned_away = ask.send(lab.address).await;
    assert!(!holder.is_finished(), "it did not wait");
    assert_eq!(turned_away.status, StatusCode::CONFLICT);
    assert_eq!(turned_away.code(), "in-flight");
    assert_eq!(turned_away.json()["retryable"], true);
    let after: u64 = turned_away.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=5).contains(&after), "expected the holder's remaining lease, got {after}");
    assert_eq!(turned_away.headers["content-type"], "application/problem+json");
    let first = holder.await.unwrap();
    let replay = ask.send(lab.address).await;
    assert!(replay.is_replay());
    assert_eq!(replay.repeated(), first.repeated());
    assert_eq!(replay.headers["cache-control"], "no-store");
}

#[tokio::test]
async fn acq_6_a_wait_ends_by_its_timeout() {
    let lab = Lab::start().await;
    let ask = Ask::post("/lab/std").key("k").script(&json!({ "tag": "slow", "delay_ms": 4_000 }));
    let holder = {
        let (ask, server) = (ask.clone(), lab.address);
        tokio::spawn(async move { ask.send(server).await })
    };
    until_runs(lab.address, "slow", (1, 0, 0)).await;
    let begin = Instant::now();
    let waited = ask.send(lab.address).await;
    assert_eq!(waited.code(), "in-flight");
    assert!(
        begin.elapsed() >= Duration::from_millis(1_900),
        "it waited for PT2S: {:?}",
        begin.elapsed()
    );
    assert_eq!(holder.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn fp_1_fp_3_another_body_path_or_method_is_another_request() {
    let lab = Lab::start().await;
    let send = |ask: Ask| async move { ask.send(lab.address).await };
    let script = json!({ "tag": "fp" });
    let ask = |path: &str| Ask::post(path).key("k").script(&script);
    assert_eq!(send(ask("/lab/std").body("one")).await.status, StatusCode::OK);
    let other = send(ask("/lab/std").body("two")).await;
    assert_eq!(
        (other.status, other.code().as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "fingerprint-mismatch")
    );
    assert_eq!(send(ask("/lab/std?x=1").body("one")).await.code(), "fingerprint-mismatch");
    assert_eq!(
        send(ask("/lab/std").method("PUT").body("one")).await.code(),
        "fingerprint-mismatch"
    );
    assert!(send(ask("/lab/std").body("one")).await.is_replay());
    assert_eq!(runs(lab.address, "fp").await, (1, 1, 0), "nothing ran for the others");
    // A different scope is a different record (ID-1). `/lab/orders/1` and `/lab/orders/2` match one
    // route and so share a scope, but their fingerprints differ.
    assert!(!send(ask("/lab/patient").body("one")).await.is_replay());
    assert!(!send(ask("/lab/orders/1").body("one")).await.is_replay());
    assert_eq!(send(ask("/lab/orders/2").body("one")).await.code(), "fingerprint-mismatch");
    assert!(
        !send(ask("/lab/orders/1").method("PUT").body("one")).await.is_replay(),
        "HTTP-16: another method, another scope"
    );
}

#[tokio::test]
async fn http_16_tenants_do_not_share_keys() {
    let lab = Lab::start().await;
    let ask = || Ask::post("/lab/tenant").key("k").script(&json!({ "tag": "tenant" }));
    for ask in [
        ask(),
        ask().header("x-tenant", ""),
        ask().header("x-tenant", "a"),
        ask().header("x-tenant", "b"),
    ] {
        assert!(!ask.send(lab.address).await.is_replay());
        assert!(ask.send(lab.address).await.is_replay());
    }
    assert_eq!(runs(lab.address, "tenant").await, (4, 4, 0));
}

#[tokio::test]
async fn cmp_6_a_result_past_its_ttl_runs_again() {
    let lab = Lab::start().await;
    let ask = Ask::post("/lab/short").key("k").script(&json!({ "tag": "short" }));
    assert!(!ask.send(lab.address).await.is_replay());
    assert!(ask.send(lab.address).await.is_replay());
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert!(!ask.send(lab.address).await.is_replay());
    assert_eq!(runs(lab.address, "short").await, (2, 2, 0));
}

#[tokio::test]
async fn http_1_http_15_layer_and_unguarded_routes() {
    let lab = Lab::start().await;
    let layered = Ask::post("/lab/layered").key("k").script(&json!({ "tag": "layered" }));
    assert!(!layered.send(lab.address).await.is_replay());
    assert!(layered.send(lab.address).await.is_replay());
    // The lab's policy guards every method, including GET.
    let read = Ask::post("/lab/layered").method("GET").key("r").script(&json!({ "tag": "read" }));
    assert!(!read.send(lab.address).await.is_replay());
    assert!(read.send(lab.address).await.is_replay());
    assert_eq!(runs(lab.address, "read").await, (1, 1, 0));
    let open = Ask::post("/open/echo")
        .key("k")
        .script(&json!({ "tag": "open", "echo": true }))
        .body("abc");
    for _ in 0..2 {
        let answer = open.send(lab.address).await;
        assert!(!answer.is_replay());
        assert_eq!(answer.body, "abc");
    }
    assert_eq!(runs(lab.address, "layered").await, (1, 1, 0));
    assert_eq!(runs(lab.address, "open").await, (2, 2, 0));
}
