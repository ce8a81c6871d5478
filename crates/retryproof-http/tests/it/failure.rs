// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures of the store, the engine or a completion: the guard fails closed, with typed errors,
//! and nothing runs twice unnoticed (HTTP-14, CMP-2 to CMP-9).
//!
//! This file is over 400 lines long because the tests of all failures share one set of helpers.

use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::any;
use http::StatusCode;
use retryproof_core::store::{AcquireRequest, Acquired, Completion};
use retryproof_core::{
    CodecId, CompletionFailurePolicy, ErrorKind, Fingerprint, FingerprintMode, IdempotencyConfig,
    IdempotencyEngine, IdempotencyStore as _, Identity, OwnerId, Payload, Recorded,
};
use retryproof_http::{Code, FingerprintRequest, IdempotencyFilter, Policy, Release, RequestParts};
use retryproof_memory::MemoryStore;
use tokio::time::{advance, sleep};
use tower::ServiceExt as _;

use crate::faulty::{Fault, Faulty};
use crate::world::{Answer, Runs, STD, filter_with, post, send};

const SEC: Duration = Duration::from_secs(1);

fn engine(store: &Faulty, with: impl FnOnce(&mut IdempotencyConfig)) -> IdempotencyEngine {
    let mut config = IdempotencyConfig::default();
    with(&mut config);
    IdempotencyEngine::builder(store.clone()).config(config).build().unwrap()
}

fn filter_on(store: &Faulty, with: impl FnOnce(&mut IdempotencyConfig)) -> IdempotencyFilter {
    IdempotencyFilter::builder(engine(store, with)).callers_share_keys().build().unwrap()
}

/// Creates an app whose handler takes as long as the request's body says (in ms) and answers with
/// the number of its run.
fn timed(filter: &IdempotencyFilter) -> (Router, Runs) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |body: String| async move {
            let run = runs.run();
            sleep(Duration::from_millis(body.parse().unwrap_or(0))).await;
            run.to_string()
        }
    };
    (Router::new().route("/pay", any(handler).layer(filter.guard(STD))), runs)
}

fn expect_later(answer: &Answer, code: Code) {
    assert_eq!((answer.status, answer.code()), (StatusCode::SERVICE_UNAVAILABLE, code.as_str()));
    let seconds: u32 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds), "{seconds}");
    assert!(answer.text().contains("\"retryable\":true"));
}

#[tokio::test(start_paused = true)]
async fn http_14_a_store_that_is_away_is_503_and_nothing_runs() {
    let store = Faulty::new();
    let (app, runs) = timed(&filter_on(&store, |_| {}));
    store.fault("acquire", Fault::Fails(ErrorKind::Unavailable));
    expect_later(&send(&app, post("/pay", "k", "")).await, Code::StoreUnavailable);
    assert_eq!(runs.count(), 0);
    store.heal();
    advance(SEC).await;
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "1");
}

#[tokio::test(start_paused = true)]
async fn http_14_a_store_that_is_too_slow_is_503() {
    let store = Faulty::new();
    let (app, runs) = timed(&filter_on(&store, |config| config.operation_timeout = SEC));
    store.fault("acquire", Fault::Slow(60 * SEC));
    expect_later(&send(&app, post("/pay", "k", "")).await, Code::StoreUnavailable);
    assert_eq!(runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn acq_9_an_acquire_whose_answer_is_lost_is_granted_by_its_repetition() {
    let store = Faulty::new();
    let (app, _) = timed(&filter_on(&store, |_| {}));
    store.fault("acquire", Fault::LosesAnswer(1));
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "1");
}

#[tokio::test(start_paused = true)]
async fn http_14_other_store_errors_are_500_and_not_retryable() {
    let store = Faulty::new();
    let (app, runs) = timed(&filter_on(&store, |_| {}));
    for (kind, code) in [
        (ErrorKind::Unexpected, "store-error"),
        (ErrorKind::Schema, "store-error"),
        (ErrorKind::Unsupported, "store-error"),
        (ErrorKind::Corrupt, "record-unreadable"),
    ] {
        store.fault("acquire", Fault::Fails(kind));
        let answer = send(&app, post("/pay", "k", "")).await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::INTERNAL_SERVER_ERROR, code),
            "{kind:?}"
        );
        assert!(
            answer.text().contains("\"retryable\":false") && answer.header("retry-after").is_none()
        );
    }
    store.fault("acquire", Fault::Fails(ErrorKind::Full));
    expect_later(&send(&app, post("/pay", "k", "")).await, Code::StoreUnavailable);
    assert_eq!(runs.count(), 0);
}

/// Creates a filter on a store in which one identity is COMPLETE with `envelope` under
/// `fingerprint`.
async fn planted(envelope: Vec<u8>, fingerprint: Option<Fingerprint>) -> (Router, Runs, Faulty) {
    let store = Faulty::new();
    let identity = Identity::of("std", "-:k").unwrap();
    let owner = OwnerId::new();
    let acquired = store.acquire(&identity, &AcquireRequest::new(owner, SEC, 60 * SEC)).await;
    assert!(matches!(acquired, Ok(Acquired::Granted(_))));
    let done = Completion::new(envelope.into(), 60 * SEC, fingerprint);
    let _ = store.complete(&identity, owner, &done).await.unwrap();
    let (app, runs) = timed(&filter_on(&store, |_| {}));
    (app, runs, store)
}

#[tokio::test(start_paused = true)]
async fn cmp_8_an_unreadable_record_fails_closed_and_stays() {
    let http = |body: &[u8]| Payload::new(CodecId::HTTP, 1, body).envelope().to_vec();
    for (envelope, what) in [
        (b"".to_vec(), "empty"),
        (b"garbage".to_vec(), "foreign"),
        (Payload::new(CodecId::JSON, 0, b"{}").envelope().to_vec(), "another codec"),
        (
            Payload::new(CodecId::HTTP, 9, b"\x01\x00\x00\xc8\x00\x00\x00").envelope().to_vec(),
            "another schema",
        ),
        (http(b""), "empty response"),
        (http(b"\x02\x00\x00\xc8\x00\x00\x00"), "later version"),
        (http(b"\x01\x00\x00\xc8\x00\x00\x05abc"), "cut short"),
    ] {
        let (app, runs, _) = planted(envelope, None).await;
        for _ in 0..2 {
            let answer = send(&app, post("/pay", "k", "")).await;
            assert_eq!(answer.code(), "record-unreadable", "{what}");
            assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        }
        assert_eq!(runs.count(), 0, "{what}");
    }
    let (app, _, _) = planted(http(b"\x01\x00\x00\xc8\x00\x00\x03abc"), None).await;
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "abc");
}

#[tokio::test(start_paused = true)]
async fn fp_2_a_mismatch_is_judged_before_anything_is_opened() {
    let other = Fingerprint::new(&[1; 33]).unwrap();
    let (app, runs, _) = planted(b"garbage".to_vec(), Some(other)).await;
    assert_eq!(send(&app, post("/pay", "k", "")).await.code(), "fingerprint-mismatch");
    // This program does not support the record's algorithm, so the request cannot be compared and
    // is refused.
    let foreign = Fingerprint::new(&[200; 33]).unwrap();
    let (app, _, _) = planted(b"garbage".to_vec(), Some(foreign)).await;
    assert_eq!(send(&app, post("/pay", "k", "")).await.code(), "record-unreadable");
    assert_eq!(runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn fp_3_a_duplicate_is_judged_under_the_algorithm_of_the_record() {
    #[derive(Debug)]
    struct LengthOnly;
    impl FingerprintRequest for LengthOnly {
        fn algorithm(&self) -> u8 {
            129
        }
        fn digest(&self, request: &RequestParts<'_>) -> [u8; 32] {
            [u8::try_from(request.body.len()).unwrap_or(u8::MAX); 32]
        }
    }
    let store = Faulty::new();
    let filter = |mode| filter_on(&store, |config| config.web.fingerprint = mode);
    let modes = [FingerprintMode::Request, FingerprintMode::Body, FingerprintMode::Json];
    for first in modes {
        for later in modes {
            let key = format!("{first:?}-{later:?}");
            let (before, _) = timed(&filter(first));
            let (after, runs) = timed(&filter(later));
            assert_eq!(
                send(&before, post("/pay", &key, r#"{"a":1,"b":2}"#)).await.status,
                StatusCode::OK
            );
            assert!(
                send(&after, post("/pay", &key, r#"{"a":1,"b":2}"#)).await.is_replay(),
                "{key}"
            );
            // Whether the same JSON in another spelling matches depends on the algorithm of the
            // record.
            let respelled = send(&after, post("/pay", &key, r#"{"b":2, "a":1}"#)).await;
            assert_eq!(respelled.is_replay(), first == FingerprintMode::Json, "{key}");
            assert_eq!(send(&after, post("/pay", &key, "[]")).await.code(), "fingerprint-mismatch");
            assert_eq!(runs.count(), 0);
        }
    }
    let custom = IdempotencyFilter::builder(engine(&store, |_| {}))
        .callers_share_keys()
        .fingerprint(LengthOnly)
        .build()
        .unwrap();
    let (app, _) = timed(&custom);
    assert_eq!(send(&app, post("/pay", "custom", "12")).await.text(), "1");
    assert!(send(&app, post("/pay", "custom", "21")).await.is_replay());
    assert_eq!(send(&app, post("/pay", "custom", "3")).await.code(), "fingerprint-mismatch");
}

#[tokio::test(start_paused = true)]
async fn http_14_too_many_running_is_503_and_a_completed_key_is_still_replayed() {
    let filter = filter_with(|config| config.max_running = Some(1));
    let (app, runs) = timed(&filter);
    assert_eq!(send(&app, post("/pay", "done", "")).await.text(), "1");
    let long = tokio::spawn({
        let app = app.clone();
        async move { send(&app, post("/pay", "long", "3000")).await }
    });
    tokio::task::yield_now().await;
    expect_later(&send(&app, post("/pay", "new", "")).await, Code::TooBusy);
    assert!(send(&app, post("/pay", "done", "")).await.is_replay());
    assert_eq!(send(&app, post("/pay", "done", "1")).await.code(), "fingerprint-mismatch");
    assert_eq!(long.await.unwrap().text(), "2");
    assert_eq!(send(&app, post("/pay", "new", "")).await.text(), "3");
    assert_eq!(runs.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn run_5_shutdown_grants_nothing_replays_what_is_done_and_waits_for_the_rest() {
    let filter = filter_with(|_| {});
    let (app, _) = timed(&filter);
    assert_eq!(send(&app, post("/pay", "done", "")).await.text(), "1");
    // The client of this request disconnects, so a server's own graceful shutdown would not wait
    // for the request.
    let client = tokio::spawn({
        let app = app.clone();
        async move { send(&app, post("/pay", "long", "3000")).await }
    });
    sleep(SEC).await;
    client.abort();
    assert_eq!(filter.shutdown(SEC).await, 1, "one is left");
    expect_later(&send(&app, post("/pay", "new", "")).await, Code::ShuttingDown);
    assert!(send(&app, post("/pay", "done", "")).await.is_replay());
    assert_eq!(filter.shutdown(10 * SEC).await, 0);
    assert_eq!(send(&app, post("/pay", "long", "3000")).await.text(), "2");
}

#[tokio::test(start_paused = true)]
async fn http_14_a_full_store_refuses_new_keys_and_replays_the_others() {
    let engine = IdempotencyEngine::new(MemoryStore::builder().max_records(1).build());
    let filter = IdempotencyFilter::builder(engine).callers_share_keys().build().unwrap();
    let (app, runs) = timed(&filter);
    assert_eq!(send(&app, post("/pay", "a", "")).await.text(), "1");
    expect_later(&send(&app, post("/pay", "b", "")).await, Code::StoreUnavailable);
    assert!(send(&app, post("/pay", "a", "")).await.is_replay());
    assert_eq!(runs.count(), 1);
}

/// Sends one request, and returns what the response says about its record.
async fn recorded(app: &Router, key: &str, body: &'static str) -> (Answer, Option<Recorded>) {
    let Ok(response) = app.clone().oneshot(post("/pay", key, body)).await;
    let recorded = response.extensions().get().copied();
    (Answer::of(response).await, recorded)
}

#[tokio::test(start_paused = true)]
async fn cmp_4_log_and_return_sends_the_response_and_a_retry_after_the_lease_runs_again() {
    let store = Faulty::new();
    let (app, runs) = timed(&filter_on(&store, |_| {}));
    store.fault("complete", Fault::Fails(ErrorKind::Unavailable));
    let (answer, told) = recorded(&app, "k", "").await;
    assert_eq!((answer.text(), told), ("1", Some(Recorded::No)));
    store.heal();
    store.fault("complete", Fault::Fails(ErrorKind::Unexpected));
    advance(10 * SEC).await;
    let (answer, told) = recorded(&app, "k", "").await;
    assert_eq!((answer.text(), told), ("2", Some(Recorded::No)));
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn cmp_4_propagate_fails_the_call_and_sends_nothing_of_the_handlers() {
    let store = Faulty::new();
    let propagate = |config: &mut IdempotencyConfig| {
        config.completion_failure_policy = CompletionFailurePolicy::Propagate
    };
    let (app, runs) = timed(&filter_on(&store, propagate));
    store.fault("complete", Fault::Fails(ErrorKind::Unexpected));
    let answer = send(&app, post("/pay", "k", "")).await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::INTERNAL_SERVER_ERROR, "completion-failed")
    );
    assert!(answer.text().contains("\"retryable\":true"));
    // The failed completion does not release the lease.
    assert_eq!(send(&app, post("/pay", "k", "")).await.code(), "in-flight");
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn cmp_3_a_completion_whose_answer_is_lost_is_repeated() {
    let store = Faulty::new();
    let (app, _) = timed(&filter_on(&store, |_| {}));
    store.fault("complete", Fault::LosesAnswer(3));
    let (answer, told) = recorded(&app, "k", "").await;
    assert_eq!((answer.text(), told), ("1", Some(Recorded::Yes)));
    assert!(send(&app, post("/pay", "k", "")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn cmp_9_a_value_that_the_store_refuses_for_its_size_is_a_tombstone() {
    for (policy, code) in [
        (CompletionFailurePolicy::LogAndReturn, None),
        (CompletionFailurePolicy::Propagate, Some("completion-failed")),
    ] {
        let store = Faulty::new();
        let (app, runs) =
            timed(&filter_on(&store, |config| config.completion_failure_policy = policy));
        store.fault("complete", Fault::Fails(ErrorKind::TooLarge));
        // The store refuses the tombstone too, so the completion fails.
        let (answer, told) = recorded(&app, "k", "").await;
        match code {
            None => assert_eq!((answer.text(), told), ("1", Some(Recorded::No))),
            Some(code) => assert_eq!(answer.code(), code),
        }
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_the_stores_own_limit_counts_if_it_is_lower() {
    let store = Faulty::new().with_max_value(300);
    let filter = filter_on(&store, |config| {
        config.completion_failure_policy = CompletionFailurePolicy::Propagate
    });
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |body: String| async move {
            runs.run();
            "x".repeat(body.parse().unwrap())
        }
    };
    let app = Router::new().route("/pay", any(handler).layer(filter.guard(STD)));
    // The body of the response to `a` is over the limit. The body of the response to `b` is over it
    // only together with the header fields and the envelope. The response to `c` is below it.
    for (key, len, replayed) in [("a", "301", false), ("b", "290", false), ("c", "200", true)] {
        assert_eq!(send(&app, post("/pay", key, len)).await.body.len().to_string(), len);
        let again = send(&app, post("/pay", key, len)).await;
        assert_eq!(again.is_replay(), replayed, "{len}");
        assert!(replayed || again.code() == "result-not-replayable");
    }
    assert_eq!(runs.count(), 3);
}

/// Starts a holder whose heartbeats fail, so that it loses its lease to the next request, the
/// taker. The handler of the taker takes `taker` milliseconds. Returns the response to the holder,
/// and the task of the taker.
async fn overtaken(
    taker: &'static str,
    policy: CompletionFailurePolicy,
    answer: impl Fn(usize) -> axum::response::Response + Clone + Send + Sync + 'static,
) -> (Answer, tokio::task::JoinHandle<Answer>) {
    let store = Faulty::new();
    let filter = filter_on(&store, |config| {
        config.completion_failure_policy = policy;
        config.web.fingerprint = FingerprintMode::Body;
    });
    let runs = Runs::default();
    let handler = move |headers: http::HeaderMap| async move {
        let run = runs.run();
        let delay: u64 = headers["x-delay"].to_str().unwrap().parse().unwrap();
        sleep(Duration::from_millis(delay)).await;
        answer(run)
    };
    let policy = Policy::new("std").with_lease(SEC).with_wait_timeout(SEC);
    let app = Router::new().route("/pay", any(handler).layer(filter.guard(policy)));
    let send_with = |delay: &'static str| {
        let app = app.clone();
        let mut request = post("/pay", "k", "");
        request.headers_mut().insert("x-delay", delay.parse().unwrap());
        tokio::spawn(async move { send(&app, request).await })
    };
    store.fault("extend", Fault::Fails(ErrorKind::Unavailable));
    let holder = send_with("3000");
    sleep(2 * SEC).await;
    store.heal();
    let taker = send_with(taker);
    (holder.await.unwrap(), taker)
}

#[tokio::test(start_paused = true)]
async fn cmp_2_a_fenced_holder_answers_with_the_takers_result() {
    let run = |run: usize| run.to_string().into_response();
    let (holder, taker) = overtaken("0", CompletionFailurePolicy::LogAndReturn, run).await;
    assert_eq!((holder.text(), holder.is_replay()), ("2", true));
    assert_eq!(taker.await.unwrap().text(), "2");
    // This taker's handler is still running when the holder's handler finishes, so the holder's
    // call waits for the taker's result.
    let (holder, taker) = overtaken("1500", CompletionFailurePolicy::LogAndReturn, run).await;
    assert_eq!((holder.text(), holder.is_replay()), ("2", true));
    assert_eq!(taker.await.unwrap().text(), "2");
}

#[tokio::test(start_paused = true)]
async fn cmp_2_a_fenced_holder_is_in_flight_while_the_taker_is_at_work() {
    let run = |run: usize| run.to_string().into_response();
    let (holder, taker) = overtaken("10000", CompletionFailurePolicy::LogAndReturn, run).await;
    assert_eq!(holder.code(), "in-flight");
    assert_eq!(taker.await.unwrap().text(), "2");
}

#[tokio::test(start_paused = true)]
async fn ctx_5_cmp_9_a_response_that_cannot_be_encoded_is_sent_without_a_guard() {
    let store = Faulty::new();
    let engine = engine(&store, |config| {
        config.completion_failure_policy = CompletionFailurePolicy::Propagate;
        config.scopes.entry("std".to_owned()).or_default().enabled = Some(false);
    });
    let filter = IdempotencyFilter::builder(engine).callers_share_keys();
    let filter = filter.edit_stored(|_, _| panic!("the hook panics")).build().unwrap();
    let (app, _) = timed(&filter);
    let answer = send(&app, post("/pay", "k", "")).await;
    assert_eq!((answer.status, answer.text()), (StatusCode::OK, "1"), "nothing is recorded");
}

#[tokio::test(start_paused = true)]
async fn http_20_cmp_2_a_fenced_holder_of_another_request_gets_the_status_of_its_policy() {
    let store = Faulty::new();
    let handler = |body: String| async move {
        sleep(if body == "slow" { 3 * SEC } else { Duration::ZERO }).await;
        "done"
    };
    let policy = Policy::new("std").with_lease(SEC).with_mismatch_status(409);
    let guarded = any(handler).layer(filter_on(&store, |_| {}).guard(policy));
    let app = Router::new().route("/pay", guarded);
    store.fault("extend", Fault::Fails(ErrorKind::Unavailable));
    let holder = tokio::spawn({
        let app = app.clone();
        async move { send(&app, post("/pay", "k", "slow")).await }
    });
    sleep(2 * SEC).await;
    store.heal();
    assert_eq!(send(&app, post("/pay", "k", "quick")).await.text(), "done");
    let holder = holder.await.unwrap();
    assert_eq!((holder.status.as_u16(), holder.code()), (409, "fingerprint-mismatch"));
}

#[tokio::test(start_paused = true)]
async fn cmp_2_a_fenced_holder_without_a_record_is_a_completion_failure() {
    // The taker releases the key, so the fenced holder finds no record.
    let run = |run: usize| {
        if run == 2 { (Release, "2").into_response() } else { run.to_string().into_response() }
    };
    let (holder, _) = overtaken("500", CompletionFailurePolicy::LogAndReturn, run).await;
    assert_eq!((holder.text(), holder.is_replay()), ("1", false));
    let (holder, _) = overtaken("500", CompletionFailurePolicy::Propagate, run).await;
    assert_eq!(holder.code(), "completion-failed");
}

#[tokio::test(start_paused = true)]
async fn run_4_a_release_that_fails_hides_nothing() {
    let store = Faulty::new();
    let filter = filter_on(&store, |config| config.operation_timeout = SEC);
    let handler = || async { (StatusCode::BAD_GATEWAY, Release, "throttled") };
    let app = Router::new().route("/pay", any(handler).layer(filter.guard(STD)));
    store.fault("release", Fault::Fails(ErrorKind::Unavailable));
    assert_eq!(send(&app, post("/pay", "k", "")).await.text(), "throttled");
}

#[tokio::test(start_paused = true)]
async fn acq_8_a_first_execution_costs_two_calls_a_replay_one_and_a_look_one() {
    let store = Faulty::new();
    let filter = filter_on(&store, |_| {});
    let (app, _) = timed(&filter);
    send(&app, post("/pay", "k", "")).await;
    assert_eq!(store.calls(), [("acquire", 1), ("complete", 1)]);
    send(&app, post("/pay", "k", "")).await;
    assert_eq!(store.calls(), [("acquire", 1)]);
    let zero = Policy::new("zero").with_wait_timeout(Duration::ZERO);
    let slow = Router::new().route("/pay", any(|| sleep(SEC)).layer(filter.guard(zero)));
    let first = tokio::spawn({
        let slow = slow.clone();
        async move { send(&slow, post("/pay", "k", "")).await }
    });
    tokio::task::yield_now().await;
    store.calls();
    assert_eq!(send(&slow, post("/pay", "k", "")).await.code(), "in-flight");
    assert_eq!(store.calls(), [("acquire", 1)]);
    first.await.unwrap();
    // The next request is refused before it reaches the store. The only new call is the completion
    // of the first request.
    send(&app, post("/pay", "a,b", "")).await;
    assert_eq!(store.calls(), [("complete", 1)]);
}

#[tokio::test(start_paused = true)]
async fn http_6_the_record_stands_before_the_first_byte_of_the_response() {
    let store = Faulty::new();
    let (app, _) = timed(&filter_on(&store, |_| {}));
    store.fault("complete", Fault::Slow(3 * SEC));
    let started = tokio::time::Instant::now();
    let Ok(response) = app.clone().oneshot(post("/pay", "k", "")).await;
    assert!(started.elapsed() >= 3 * SEC, "the head waits for the completion");
    // No byte of the body was read, but the record exists.
    assert!(send(&app, post("/pay", "k", "")).await.is_replay());
    drop(response);
}
