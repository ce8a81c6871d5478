// SPDX-License-Identifier: MIT OR Apache-2.0
//! No log line shows a key, body, caller or cookie, whatever goes wrong (ID-4). A warning that is
//! due once is logged once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::any;
use http::header::SET_COOKIE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, response};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use retryproof_core::config::StoredStatuses;
use retryproof_core::{
    CompletionFailurePolicy, ErrorKind, IdempotencyConfig, IdempotencyEngine, Identity,
    IdentitySecret, SharedStore,
};
use retryproof_http::adapter::stored_key;
use retryproof_http::{AnswerFate, IdempotencyFilter, Policy, Release};
use retryproof_memory::MemoryStore;
use tokio::time::sleep;
use tower_http::catch_panic::CatchPanicLayer;

use crate::faulty::{Fault, Faulty};
use crate::world::{Annotated, STD, filter, post, request, send};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Captures everything that this thread logs while the guard lives.
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

const SEC: Duration = Duration::from_secs(1);

/// The digits in the log identify the record. They can be computed from the key only with the
/// secret.
#[tokio::test(start_paused = true)]
async fn id_5_log_lines_show_the_digest_that_the_store_keeps() {
    let (log, _guard) = Log::start();
    let secret = IdentitySecret::new("s".repeat(32)).unwrap();
    let store = MemoryStore::builder().identity_secret(secret).build();
    let store = SharedStore::builder(store).with_inspect().build();
    let engine = IdempotencyEngine::new(store.clone());
    let filter = IdempotencyFilter::builder(engine).callers_share_keys().build().unwrap();
    let guard = filter.guard(Policy::new("pay"));
    let app = Router::new().route("/", any(|| async { "paid" }).layer(guard));
    for replayed in [false, true] {
        assert_eq!(send(&app, post("/", "canary-key", "")).await.is_replay(), replayed);
    }
    let page = store.scan(None, 10).await.unwrap().unwrap();
    let [record] = &page.records[..] else { panic!("{page:?}") };
    let plain = Identity::of(record.id.scope(), stored_key(None, "canary-key"));
    let logged = log.text();
    assert!(logged.contains(&record.id.to_string()), "{}: {logged}", record.id);
    assert!(
        !logged.contains(&plain.unwrap().to_string()) && !logged.contains("canary"),
        "{logged}"
    );
}

#[tokio::test(start_paused = true)]
async fn id_4_nothing_of_a_request_or_an_answer_stands_in_a_log_line() {
    let (log, _guard) = Log::start();
    let store = Faulty::new();
    let mut config = IdempotencyConfig::default();
    config.completion_failure_policy = CompletionFailurePolicy::Propagate;
    let engine = IdempotencyEngine::builder(store.clone()).config(config).build().unwrap();
    let filter = IdempotencyFilter::builder(engine)
        .caller(|_: &Parts| "canary-caller".to_owned())
        .build()
        .unwrap();
    let handler = |headers: HeaderMap, body: String| async move {
        assert!(body == "canary-body" || body.is_empty());
        match headers.get("x-do").map(|what| what.to_str().unwrap_or_default()) {
            Some("panic") => std::panic::resume_unwind(Box::new("a panic, which the catcher logs")),
            Some("release") => (Release, "canary-answer").into_response(),
            Some("slow") => {
                sleep(3 * SEC).await;
                "canary-answer".into_response()
            }
            Some("sse") => {
                ([("content-type", "text/event-stream")], "canary-answer").into_response()
            }
            _ => (
                [("set-cookie", "canary-cookie"), ("location", "/canary-location")],
                "canary-answer",
            )
                .into_response(),
        }
    };
    let policy = Policy::new("std").with_lease(SEC).with_wait_timeout(SEC);
    let app = Router::new()
        .route("/pay/{id}", any(handler).layer(filter.guard(policy)))
        .layer(CatchPanicLayer::new());
    let ask = |what: &'static str, key: &'static str, body: &'static str| {
        request(Method::POST, "/pay/canary-path", &[("idempotency-key", key), ("x-do", what)], body)
    };
    for what in ["", "panic", "release", "sse"] {
        for body in ["canary-body", "canary-body", ""] {
            send(&app, ask(what, "canary-key", body)).await;
        }
    }
    send(&app, ask("", "canary key, malformed", "canary-body")).await;
    send(&app, ask("", "canary-key-2", &*"canary-body".repeat(100_000).leak())).await;
    for operation in ["acquire", "complete", "release"] {
        for kind in [
            ErrorKind::Unavailable,
            ErrorKind::Unexpected,
            ErrorKind::Corrupt,
            ErrorKind::TooLarge,
            ErrorKind::Full,
        ] {
            store.fault(operation, Fault::Fails(kind));
            for what in ["", "release", "panic"] {
                send(&app, ask(what, "canary-key-3", "canary-body")).await;
                tokio::time::advance(10 * SEC).await;
            }
            store.heal();
        }
    }
    // Make a holder lose its lease, and another request take over, so that both are logged too.
    store.fault("extend", Fault::Fails(ErrorKind::Unavailable));
    let holder = tokio::spawn({
        let (app, request) = (app.clone(), ask("slow", "canary-key-4", "canary-body"));
        async move { send(&app, request).await }
    });
    sleep(2 * SEC).await;
    send(&app, ask("", "canary-key-4", "canary-body")).await;
    holder.await.unwrap();
    let text = log.text();
    assert!(text.lines().count() > 10, "the failures were logged: {text}");
    assert!(text.contains("std#"), "with their identities masked: {text}");
    for line in text.lines() {
        assert!(!line.contains("canary"), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_9_an_unstored_field_is_warned_about_once_per_scope() {
    let (log, _guard) = Log::start();
    let filter = filter();
    let handler = || async { ([("set-cookie", "a=1"), ("www-authenticate", "Basic")], "") };
    let route = |scope| any(handler).layer(filter.guard(Policy::new(scope)));
    let trailing = || async {
        let trailers = async {
            Some(Ok(HeaderMap::from_iter([(SET_COOKIE, HeaderValue::from_static("a=1"))])))
        };
        Body::new(Body::from("abc").with_trailers(trailers))
    };
    let in_trailers = any(trailing).layer(filter.guard(Policy::new("scope-c")));
    let app = Router::new()
        .route("/a", route("scope-a"))
        .route("/b", route("scope-b"))
        .route("/c", in_trailers);
    for key in ["1", "2", "3"] {
        send(&app, post("/a", key, "")).await;
        send(&app, post("/b", key, "")).await;
        send(&app, post("/c", key, "")).await;
    }
    let warnings: Vec<String> =
        log.text().lines().filter(|line| line.contains("WARN")).map(ToOwned::to_owned).collect();
    assert_eq!(warnings.len(), 3, "{warnings:#?}");
    for (warning, scope) in warnings.iter().zip(["scope-a", "scope-b", "scope-c"]) {
        assert!(warning.contains(scope) && warning.contains("set-cookie"), "{warning}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_19_a_policy_that_the_hook_makes_void_is_warned_about_once() {
    const ONLY_SUCCESSES: Policy = STD.with_stored(StoredStatuses::SUCCESSES);
    let engine = || IdempotencyEngine::new(MemoryStore::new());
    let hooked = |hook: fn(&response::Parts) -> AnswerFate| {
        let filter = IdempotencyFilter::builder(engine()).callers_share_keys().fate(hook);
        filter.build().unwrap()
    };
    let (log, _guard) = Log::start();
    let warnings = || log.text().matches("`Policy::with_stored` has no effect").count();
    let _ = filter().guard(ONLY_SUCCESSES);
    let _ = hooked(|_| AnswerFate::Store).guard(STD);
    assert_eq!(warnings(), 0, "nothing is void: {}", log.text());
    let filter = hooked(|_| AnswerFate::Hold);
    let layered = any(|| async {}).layer(filter.guard(ONLY_SUCCESSES));
    assert_eq!(warnings(), 1, "at the start: {}", log.text());
    assert!(log.text().contains("scope=\"std\""), "{}", log.text());
    let app = Router::new().route("/pay", layered);
    for key in ["1", "2"] {
        send(&app, post("/pay", key, "")).await;
    }
    let _ = filter.guard(ONLY_SUCCESSES);
    let _ = filter.with_rejections(|_| http::Response::default()).guard(ONLY_SUCCESSES);
    assert_eq!(warnings(), 1, "once: {}", log.text());
    let _ = hooked(|_| AnswerFate::Store).guard(ONLY_SUCCESSES);
    assert_eq!(warnings(), 2, "each filter logs it: {}", log.text());
}

#[tokio::test(start_paused = true)]
async fn http_19_a_setting_that_the_hook_makes_void_is_warned_about_at_the_start() {
    let (log, _guard) = Log::start();
    let warnings = || log.text().matches("the setting `store` of a scope has no effect").count();
    let build = |stored, is_hooked| {
        let mut config = IdempotencyConfig::default();
        config.scopes.entry("std".to_owned()).or_default().stored = stored;
        let engine = IdempotencyEngine::builder(MemoryStore::new()).config(config).build().unwrap();
        let filter = IdempotencyFilter::builder(engine).callers_share_keys();
        if is_hooked { filter.fate(|_| AnswerFate::Store).build() } else { filter.build() }.unwrap()
    };
    let _ = build(None, true);
    let _ = build(Some(StoredStatuses::SUCCESSES), false);
    assert_eq!(warnings(), 0, "nothing is void: {}", log.text());
    let _ = build(Some(StoredStatuses::SUCCESSES), true);
    assert_eq!(warnings(), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn http_15_a_layer_around_an_annotated_handler_is_warned_about_once() {
    static POLICY: Policy = STD;
    let (log, _guard) = Log::start();
    let filter = filter();
    let pay = Annotated(&POLICY, |_: Body| async {});
    let app = Router::new()
        .route("/pay", any(pay))
        .layer(filter.guard(Policy::new("outer")))
        .with_state(filter);
    for key in ["1", "2"] {
        send(&app, post("/pay", key, "")).await;
    }
    assert_eq!(log.text().matches("HTTP-15").count(), 1, "{}", log.text());
}
