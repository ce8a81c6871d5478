// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests when the next attempt is made, and when none is made.

use std::time::{Duration, SystemTime};

use retryproof_client::{
    CallError, ErrorKind, GaveUp, IdempotencyMiddleware, IdempotentRequest as _,
    IdempotentResponse as _,
};
use tokio::time::{Instant, sleep, timeout};

use crate::server::{Reply, Server, URL, answer, problem, with};

/// Compares roughly, because paused time advances in whole milliseconds.
fn near(seen: &[f64], expected: &[f64]) {
    let is_near = seen.len() == expected.len()
        && seen.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.01);
    assert!(is_near, "{seen:?}, not {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn the_ceiling_of_a_pause_doubles_to_its_cap_and_jitter_takes_any_part_of_it() {
    let (most, half) = (Server::default(), Server::default());
    for (server, bits) in [(&most, u64::MAX), (&half, u64::MAX / 2)] {
        let answer =
            server.client(|b| b.jitter_source(move || bits)).post(URL).send().await.unwrap();
        assert_eq!(answer.status(), 503);
        let report = answer.call().unwrap();
        assert_eq!((report.attempts, report.gave_up), (8, Some(GaveUp::Attempts)));
    }
    near(&most.seconds(), &[0.0, 0.2, 0.6, 1.4, 3.0, 6.2, 11.2, 16.2]);
    near(&half.seconds(), &[0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.6, 8.1]);
}

#[tokio::test(start_paused = true)]
async fn drawn_pauses_stay_below_their_ceiling_and_differ() {
    let mut firsts = Vec::new();
    for _ in 0..200 {
        let server = Server::default();
        let middleware = IdempotencyMiddleware::default();
        let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
        client.with(middleware).with(server.clone()).build().post(URL).send().await.unwrap();
        let at = server.seconds();
        for (pause, ceiling) in at.windows(2).zip([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]) {
            assert!(pause[1] - pause[0] <= ceiling + 0.01, "{at:?}");
        }
        firsts.push(at[1]);
    }
    let (low, high) = (firsts.iter().filter(|at| **at < 0.1).count(), firsts.len());
    assert!(low > 50 && low < high - 50, "{low} of {high} in the lower half");
}

#[tokio::test(start_paused = true)]
async fn http_10_retry_after_is_waited_out_and_jitter_comes_on_top() {
    for (bits, more) in [(0, 0.0), (u64::MAX, 0.2)] {
        let server = Server::with([problem(409, "in-flight", true, Some("7")), answer(201)]);
        let client = server.client(|b| b.jitter_source(move || bits));
        assert_eq!(client.post(URL).send().await.unwrap().status(), 201);
        near(&server.seconds(), &[0.0, 7.0 + more]);
    }
}

#[tokio::test(start_paused = true)]
async fn http_10_a_date_is_waited_for_by_the_servers_clock_also_where_ours_is_years_off() {
    for (until, wall) in [
        ("Sun, 06 Nov 1994 08:49:37 GMT", SystemTime::UNIX_EPOCH),
        ("Sunday, 06-Nov-94 08:49:37 GMT", SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 32)),
        ("Sun Nov  6 08:49:37 1994", SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 20)),
    ] {
        let date = ("date", "Sun, 06 Nov 1994 08:49:25 GMT");
        let server = Server::with([with(503, &[("retry-after", until), date], ""), answer(200)]);
        server.client(|b| b.wall_clock(move || wall)).post(URL).send().await.unwrap();
        near(&server.seconds(), &[0.0, 12.0]);
    }
    // Without a `Date`, the wait is computed from the client's clock.
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 4);
    let until = [("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")];
    let server = Server::with([with(503, &until, ""), answer(200)]);
    server.client(|b| b.wall_clock(move || wall)).post(URL).send().await.unwrap();
    near(&server.seconds(), &[0.0, 4.0]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_that_says_nothing_leaves_the_back_off() {
    let server = Server::with([with(503, &[("retry-after", "-5")], ""), answer(200)]);
    server.client(|b| b.jitter_source(|| u64::MAX)).post(URL).send().await.unwrap();
    near(&server.seconds(), &[0.0, 0.2]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_beyond_the_deadline_is_not_begun() {
    for after in ["60", "99999999999999999999"] {
        let server = Server::with([with(503, &[("retry-after", after)], "later")]);
        let began = Instant::now();
        let answer = server.client(|b| b).post(URL).send().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        let report = answer.call().unwrap();
        assert_eq!((report.attempts, report.gave_up), (1, Some(GaveUp::Deadline)));
        assert_eq!(
            (answer.status().as_u16(), answer.text().await.unwrap().as_str()),
            (503, "later")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn silence_ends_each_attempt_and_the_deadline_ends_the_call() {
    let server = Server::with((0..9).map(|_| Reply::Silence));
    let began = Instant::now();
    let client = server.client(|b| b.deadline(Duration::from_secs(50)));
    let error = client.post(URL).idempotency_key("k").send().await.unwrap_err();
    near(&server.seconds(), &[0.0, 20.0, 40.0]);
    near(&[began.elapsed().as_secs_f64()], &[50.0]);
    let ours = CallError::of(&error).unwrap();
    assert_eq!((ours.kind(), ours.attempts()), (ErrorKind::GaveUp, 3));
    assert!(ours.key().is_some());
    assert_eq!(
        error.to_string(),
        "the call got no answer in 3 attempts: the last attempt timed out, and no time is left"
    );
}

#[tokio::test(start_paused = true)]
async fn http_8_an_answer_that_was_lost_is_replayed_to_the_next_attempt_and_says_so() {
    let replay = with(201, &[("idempotent-replayed", "true")], "receipt");
    let server = Server::with([Reply::Silence, problem(409, "in-flight", true, Some("3")), replay]);
    let answer = server.client(|b| b).post(URL).send().await.unwrap();
    near(&server.seconds(), &[0.0, 20.0, 23.0]);
    assert!(answer.is_replay());
    let report = answer.call().unwrap();
    assert!(report.replayed && report.attempts == 3 && report.gave_up.is_none());
}

#[tokio::test(start_paused = true)]
async fn one_attempt_never_retries() {
    let server = Server::default();
    let answer = server.client(|b| b.attempts(1)).post(URL).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), server.sent().len()), (503, 1));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_sends_nothing_more() {
    for replies in [None, Some(Reply::Silence)] {
        let server = Server::with(replies);
        let client = server.client(|b| b.jitter_source(|| u64::MAX));
        let call = timeout(Duration::from_millis(300), client.post(URL).send());
        assert!(call.await.is_err());
        let sent = server.sent().len();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(server.sent().len(), sent);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_with_their_name() {
    let second = Duration::from_secs(1);
    let day = Duration::from_secs(24 * 60 * 60);
    let new = IdempotencyMiddleware::builder;
    for (builder, part) in [
        (new().attempts(0), "attempts"),
        (new().deadline(Duration::ZERO), "deadline"),
        (new().deadline(day + second), "deadline"),
        (new().deadline(Duration::MAX), "deadline"),
        (new().attempt_timeout(Duration::ZERO), "attempt_timeout"),
        (new().attempt_timeout(Duration::MAX), "attempt_timeout"),
        (new().backoff(second, Duration::ZERO), "backoff"),
        (new().backoff(second, Duration::MAX), "backoff"),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(new().backoff(Duration::ZERO, Duration::ZERO).deadline(day).build().is_ok());
}
