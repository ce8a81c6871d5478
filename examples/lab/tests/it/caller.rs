// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client, `retryproof::client`, against the lab: whatever happens to answers, connections and
//! servers, a call gets its answer in the end and its work runs once, and a refused call is not
//! repeated.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::StatusCode;
use retryproof::client::reqwest::{self, Response};
use retryproof::client::reqwest_middleware::{ClientBuilder, ClientWithMiddleware, RequestBuilder};
use retryproof::client::{
    CallReport, IdempotencyMiddleware, IdempotentRequest as _, IdempotentResponse as _,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::client::{Ask, runs, until_runs};
use crate::front::{Closed, Front};
use crate::place::Place;
use crate::server::Lab;

/// How long a handler runs, in ms, if something has to happen before it ends, even on a busy
/// machine.
const LONG: u64 = 3_000;

/// Builds a client that makes as many attempts as it needs, with short pauses. The time limits
/// leave room for a busy machine.
fn client() -> ClientWithMiddleware {
    drawing(|| u64::MAX / 2)
}

/// Like [`client`], but takes the random bits for the pauses from `bits`.
fn drawing(bits: impl Fn() -> u64 + Send + Sync + 'static) -> ClientWithMiddleware {
    let middleware = IdempotencyMiddleware::builder()
        .jitter_source(bits)
        .attempts(100_000)
        .deadline(Duration::from_secs(120))
        .attempt_timeout(Duration::from_secs(60))
        .backoff(Duration::from_millis(5), Duration::from_millis(50))
        .build()
        .expect("settings that make sense");
    // Ignore the machine's proxy settings, because the test calls its own loopback address.
    let direct = reqwest::Client::builder().no_proxy().build().expect("a client");
    ClientBuilder::new(direct).with(middleware).build()
}

fn post(
    client: &ClientWithMiddleware,
    server: SocketAddr,
    path: &str,
    script: &Value,
) -> RequestBuilder {
    client.post(format!("http://{server}{path}")).header("x-lab", script.to_string()).body("{}")
}

async fn send(request: RequestBuilder) -> (Response, CallReport) {
    let answer = request.send().await.expect("the call ends well");
    let report = answer.call().expect("it came through the middleware").clone();
    assert_eq!(report.gave_up, None);
    (answer, report)
}

#[tokio::test]
async fn http_12_an_answer_that_is_dropped_is_replayed_to_the_next_attempt() {
    let lab = Lab::start().await;
    // The first two connections break when the answer is about to be sent, and the third breaks in
    // the middle of the answer's body.
    let front =
        Front::before(lab.address, |line| [Some(0), Some(1), Some(3_000), None][line.min(3)]);
    let script = json!({ "tag": "dropped", "pad": 100_000 });
    let (answer, report) = send(post(&client(), front.address, "/lab/std", &script)).await;
    assert_eq!((answer.status(), answer.is_replay(), report.attempts), (StatusCode::OK, true, 4));
    assert_eq!(answer.bytes().await.expect("a whole body").len(), 100_000);
    assert_eq!(runs(lab.address, "dropped").await, (1, 1, 0));
}

#[tokio::test]
async fn http_12_a_line_that_is_cut_while_the_handler_runs_costs_one_more_attempt() {
    let lab = Lab::start().await;
    let proxy = retryproof_testkit::wire::WireProxy::to(lab.address).await.expect("a free port");
    let script = json!({ "tag": "cut", "delay_ms": LONG });
    let call = tokio::spawn(send(post(&client(), proxy.addr(), "/lab/patient", &script)));
    until_runs(lab.address, "cut", (1, 0, 0)).await;
    proxy.cut();
    let (answer, report) = call.await.expect("it ends");
    assert_eq!((answer.status(), answer.is_replay(), report.attempts), (StatusCode::OK, true, 2));
    assert_eq!(runs(lab.address, "cut").await, (1, 1, 0));
}

#[tokio::test]
async fn http_10_a_409_is_waited_out_for_as_long_as_it_says() {
    let lab = Lab::start().await;
    let script = json!({ "tag": "busy", "delay_ms": LONG });
    let holder = Ask::post("/lab/now").key("k").script(&script);
    let server = lab.address;
    let first = tokio::spawn(async move { holder.send(server).await });
    until_runs(lab.address, "busy", (1, 0, 0)).await;
    let (answer, report) =
        send(post(&client(), server, "/lab/now", &script).idempotency_key("k")).await;
    assert_eq!((answer.status(), answer.is_replay()), (StatusCode::OK, true));
    // `Retry-After` is the remaining lease, up to 5 s. A client that ignored it would make hundreds
    // of attempts.
    assert!((2..=10).contains(&report.attempts), "{report:?}");
    assert_eq!(answer.bytes().await.expect("a body"), first.await.expect("it ends").body);
    assert_eq!(runs(lab.address, "busy").await, (1, 1, 0));
}

#[tokio::test]
async fn http_14_a_503_is_repeated_until_there_is_room() {
    let place = Place::new();
    let lab = Lab::start_with(&["--store", &place.url], &[("IDEMPOTENCY_MAX_RUNNING", "1")]).await;
    let holder =
        Ask::post("/lab/std").key("holder").script(&json!({ "tag": "holder", "delay_ms": LONG }));
    let server = lab.address;
    let first = tokio::spawn(async move { holder.send(server).await });
    until_runs(server, "holder", (1, 0, 0)).await;
    let (answer, report) =
        send(post(&client(), server, "/lab/std", &json!({ "tag": "room" }))).await;
    assert_eq!((answer.status(), answer.is_replay()), (StatusCode::OK, false));
    assert!((2..=10).contains(&report.attempts), "{report:?}");
    assert_eq!(runs(server, "room").await, (1, 1, 0));
    assert_eq!(first.await.expect("it ends").status, StatusCode::OK);
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_tried_again() {
    let lab = Lab::start().await;
    let closed = Closed::new();
    let url = format!("http://{}", closed.address);
    let direct = reqwest::Client::builder().no_proxy().build().expect("a client");
    assert!(direct.get(&url).send().await.expect_err("refused").is_connect());
    let (pausing, mut pauses) = watch::channel(0);
    let client = drawing(move || {
        pausing.send_modify(|pauses| *pauses += 1);
        u64::MAX / 2
    });
    let call =
        tokio::spawn(send(post(&client, closed.address, "/lab/std", &json!({ "tag": "late" }))));
    pauses.wait_for(|pauses| *pauses >= 5).await.expect("it goes on trying");
    let _front = closed.open(lab.address, |_| None);
    let (answer, report) = call.await.expect("it ends");
    assert_eq!((answer.status(), answer.is_replay()), (StatusCode::OK, false));
    assert!(report.attempts > 5, "{report:?}");
    assert_eq!(runs(lab.address, "late").await, (1, 1, 0));
}

#[tokio::test]
async fn acq_2_a_server_that_is_killed_is_taken_over_by_its_successor() {
    let place = Place::shared();
    let (first, second) = (Lab::start_on(&place.url).await, Lab::start_on(&place.url).await);
    let front = Front::before(first.address, |_| None);
    let dying = json!({ "tag": "killed", "delay_ms": LONG });
    let call = tokio::spawn(send(post(&client(), front.address, "/lab/patient", &dying)));
    until_runs(first.address, "killed", (1, 0, 0)).await;
    front.turn_to(second.address);
    first.kill().await;
    let (answer, report) = call.await.expect("it ends");
    assert_eq!((answer.status(), answer.is_replay()), (StatusCode::OK, false));
    assert!(report.attempts > 1, "{report:?}");
    assert_eq!(runs(second.address, "killed").await, (1, 1, 0));
}

#[tokio::test]
async fn fp_1_a_refused_mismatch_is_never_repeated() {
    let lab = Lab::start().await;
    let proxy = retryproof_testkit::wire::WireProxy::to(lab.address).await.expect("a free port");
    let (client, script) = (client(), json!({ "tag": "mismatch" }));
    let call = |body: &'static str| {
        post(&client, proxy.addr(), "/lab/std", &script).idempotency_key("k").body(body)
    };
    assert_eq!(send(call("one")).await.0.status(), StatusCode::OK);
    let before = proxy.flights();
    let (answer, report) = send(call("other")).await;
    assert_eq!((answer.status(), report.attempts), (StatusCode::UNPROCESSABLE_ENTITY, 1));
    assert_eq!(report.code.as_deref(), Some("fingerprint-mismatch"));
    // Only one round trip was on the wire.
    assert_eq!(proxy.flights() - before, 1);
    assert_eq!(runs(lab.address, "mismatch").await, (1, 1, 0));
}

#[tokio::test]
async fn http_13_a_result_that_was_not_kept_is_not_asked_for_again() {
    let lab = Lab::start().await;
    let script = json!({ "tag": "events", "sse": true });
    let client = client();
    let call = || post(&client, lab.address, "/lab/std", &script).idempotency_key("k");
    assert_eq!(send(call()).await.0.status(), StatusCode::OK);
    let (answer, report) = send(call()).await;
    assert_eq!((answer.status(), report.attempts), (StatusCode::CONFLICT, 1));
    assert_eq!(report.code.as_deref(), Some("result-not-replayable"));
    assert_eq!(runs(lab.address, "events").await, (1, 1, 0));
}

#[tokio::test]
async fn http_7_a_stored_503_is_known_by_its_replay_and_final() {
    let lab = Lab::start().await;
    let client = client();
    let stored = json!({ "tag": "stored", "status": 503 });
    // The first 503 is not a replay, so the client retries. The second 503 is a replay, so the
    // client knows that it is final.
    let (answer, report) = send(post(&client, lab.address, "/lab/std", &stored)).await;
    assert_eq!((answer.status().as_u16(), answer.is_replay(), report.attempts), (503, true, 2));
    assert_eq!(runs(lab.address, "stored").await, (1, 1, 0));
}

#[tokio::test]
async fn http_12_a_storm_of_cut_lines_runs_every_call_once() {
    const CALLS: usize = 40;
    let lab = Lab::start().await;
    // Of every three connections, two are cut: before the answer, in its headers, in its body, or
    // in the next answer on the same connection.
    let front = Front::before(lab.address, |line| (line % 3 != 2).then_some(line * 37 % 900));
    let client = client();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..CALLS {
        let script =
            json!({ "tag": format!("storm-{number}"), "delay_ms": number % 5, "pad": 300 });
        let request = post(&client, front.address, "/lab/std", &script);
        calls.spawn(async move { (number, send(request).await) });
    }
    let (mut replayed, mut attempts) = (0, 0);
    while let Some(call) = calls.join_next().await {
        let (number, (answer, report)) = call.expect("it ends");
        assert_eq!(answer.status(), StatusCode::OK);
        (replayed, attempts) =
            (replayed + usize::from(answer.is_replay()), attempts + report.attempts);
        assert_eq!(answer.bytes().await.expect("a whole body").len(), 300);
        assert_eq!(runs(lab.address, &format!("storm-{number}")).await, (1, 1, 0), "{number}");
    }
    // If no connection had been cut, the storm would prove nothing.
    assert!(replayed > 0 && attempts as usize > CALLS, "{replayed} replays, {attempts} attempts");
    assert!(front.lines() > CALLS / 2, "{} lines", front.lines());
}
