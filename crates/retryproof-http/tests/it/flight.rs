// SPDX-License-Identifier: MIT OR Apache-2.0
//! Duplicates that arrive while the first request runs (HTTP-10), and cases in which other
//! libraries make mistakes.

use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::any;
use http::{Method, StatusCode};
use retryproof_http::{IdempotencyFilter, Policy};
use tokio::time::{Instant, sleep};

use crate::world::{Answer, Runs, STD, filter, filter_with, post, request, send};

const MS: Duration = Duration::from_millis(1);

/// Creates an app whose handler takes `millis` milliseconds and answers with the number of its run.
fn slow(filter: &IdempotencyFilter, policy: Policy, millis: u32) -> (Router, Runs) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move {
            let run = runs.run();
            sleep(millis * MS).await;
            (StatusCode::CREATED, run.to_string())
        }
    };
    (Router::new().route("/pay", any(handler).layer(filter.guard(policy))), runs)
}

fn spawn(app: &Router, key: &str) -> tokio::task::JoinHandle<Answer> {
    let (app, request) = (app.clone(), post("/pay", key, ""));
    tokio::spawn(async move { send(&app, request).await })
}

#[tokio::test(start_paused = true)]
async fn http_10_a_duplicate_waits_and_gets_the_real_result() {
    let (app, runs) = slow(&filter(), STD, 300);
    let started = Instant::now();
    let (first, again) = (spawn(&app, "k"), spawn(&app, "k"));
    let (first, again) = (first.await.unwrap(), again.await.unwrap());
    assert!(!first.is_replay() && again.is_replay());
    assert_eq!((again.status, again.text()), (StatusCode::CREATED, "1"));
    assert!(started.elapsed() < 400 * MS, "{:?}", started.elapsed());
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_10_past_the_wait_a_duplicate_is_told_when_to_come_back() {
    let (app, runs) = slow(&filter(), STD, 20_000);
    let first = spawn(&app, "k");
    sleep(100 * MS).await;
    let started = Instant::now();
    let busy = send(&app, post("/pay", "k", "")).await;
    assert_eq!((busy.status, busy.code()), (StatusCode::CONFLICT, "in-flight"));
    assert_eq!(started.elapsed().as_secs(), 2, "its wait");
    let seconds: u64 = busy.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds), "no more than the lease: {seconds}");
    assert!(busy.text().contains("\"retryable\":true"));
    // Nothing is compared while the holder runs: a request with another body waits too (FP-1).
    assert_eq!(send(&app, post("/pay", "k", "other")).await.code(), "in-flight");
    assert_eq!(first.await.unwrap().text(), "1");
    assert_eq!(send(&app, post("/pay", "k", "other")).await.code(), "fingerprint-mismatch");
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_10_a_zero_wait_turns_away_at_once_with_the_configured_status() {
    let filter = filter_with(|config| config.web.in_flight_status = 425);
    let policy =
        Policy::new("now").with_wait_timeout(Duration::ZERO).with_lease(Duration::from_secs(90));
    let (app, _) = slow(&filter, policy, 1_000);
    let first = spawn(&app, "k");
    sleep(100 * MS).await;
    let started = Instant::now();
    let busy = send(&app, post("/pay", "k", "")).await;
    assert_eq!((busy.status.as_u16(), busy.code()), (425, "in-flight"));
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(busy.header("retry-after"), Some("30"), "the remaining lease, 30 at most");
    first.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn http_12_an_action_longer_than_its_lease_keeps_it() {
    let policy = Policy::new("short")
        .with_lease(Duration::from_secs(1))
        .with_wait_timeout(Duration::from_secs(10));
    let (app, runs) = slow(&filter(), policy, 3_500);
    let (first, again) = (spawn(&app, "k"), spawn(&app, "k"));
    assert_eq!(first.await.unwrap().text(), "1");
    assert_eq!(again.await.unwrap().text(), "1");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn peers_100_concurrent_duplicates_run_once_and_99_are_replayed() {
    let (app, runs) = slow(&filter(), STD, 30);
    for round in 0..20 {
        let key = format!("k{round}");
        let sent: Vec<_> = (0..100).map(|_| spawn(&app, &key)).collect();
        let mut replays = 0;
        for answer in sent {
            let answer = answer.await.unwrap();
            assert_eq!(
                (answer.status, answer.text()),
                (StatusCode::CREATED, (round + 1).to_string().as_str())
            );
            replays += usize::from(answer.is_replay());
        }
        assert_eq!((replays, runs.count()), (99, round + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn peers_same_key_at_another_endpoint_is_a_separate_record() {
    let filter = filter();
    let answer = |text: &'static str| any(move || async move { text });
    let app = Router::new()
        .route("/a", answer("a").layer(filter.guard(Policy::new("a"))))
        .route("/b", answer("b").layer(filter.guard(Policy::new("b"))))
        .route("/c/{id}", answer("c").layer(filter.guard(Policy::unnamed())))
        .route("/d/{id}", answer("d").layer(filter.guard(Policy::unnamed())));
    for (path, text) in [("/a", "a"), ("/b", "b"), ("/c/1", "c"), ("/d/1", "d")] {
        let first = send(&app, post(path, "k", "")).await;
        assert_eq!((first.text(), first.is_replay()), (text, false));
        assert!(send(&app, post(path, "k", "")).await.is_replay());
    }
    let by_get = || request(Method::GET, "/c/1", &[("idempotency-key", "k")], "");
    assert!(!send(&app, by_get()).await.is_replay(), "another method, another scope");
}

#[tokio::test(start_paused = true)]
async fn peers_nothing_but_the_key_is_needed_to_be_recognised() {
    // The connection, cookies and the user agent do not count, because a retry may come from
    // anywhere, with other headers.
    let (app, runs) = slow(&filter(), STD, 1);
    let from = |agent: &'static str, trace: &'static str| {
        let headers = [
            ("idempotency-key", "k"),
            ("user-agent", agent),
            ("traceparent", trace),
            ("accept", agent),
        ];
        request(Method::POST, "/pay", &headers, "")
    };
    assert_eq!(send(&app, from("a", "1")).await.text(), "1");
    assert!(send(&app, from("b", "2")).await.is_replay());
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn peers_a_panic_frees_the_key_at_once_and_one_waiter_runs() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move {
            let run = runs.run();
            sleep(100 * MS).await;
            assert!(run > 1, "the first run panics");
            run.to_string().into_response()
        }
    };
    let app = Router::new()
        .route("/pay", any(handler).layer(filter().guard(STD)))
        .layer(tower_http::catch_panic::CatchPanicLayer::new());
    let sent: Vec<_> = (0..10).map(|_| spawn(&app, "k")).collect();
    let mut statuses = Vec::new();
    for answer in sent {
        let answer = answer.await.unwrap();
        statuses.push((answer.status.as_u16(), answer.is_replay()));
    }
    statuses.sort_unstable();
    assert_eq!(statuses[..2], [(200, false), (200, true)]);
    assert_eq!(statuses[9], (500, false));
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn http_7_a_result_lasts_for_the_ttl_from_completion() {
    let (app, runs) = slow(&filter(), Policy::new("short").with_ttl(Duration::from_secs(2)), 1_500);
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "1");
    sleep(1_999 * MS).await;
    assert!(send(&app, post("/pay", "k", "")).await.is_replay());
    sleep(MS).await;
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "2");
    assert_eq!(runs.count(), 2);
}
