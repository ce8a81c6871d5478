// SPDX-License-Identifier: MIT OR Apache-2.0
//! How each response was served, as a layer outside of the guard sees it, and what the log and the
//! observers report about the call (HTTP-18, RUN-7, RUN-8).
//!
//! This file is over 400 lines long because all ways in which a response leaves the guard are
//! tested here, in each front end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post as on_post};
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, StatusCode};
use http_body::Frame;
use parking_lot::Mutex;
use retryproof_core::observe::{CallEvent, LeaseEvent, Observer, Phase, StoreCallEvent};
use retryproof_core::store::{AcquireRequest, Completion, HolderNote};
use retryproof_core::{
    CompletionFailurePolicy, ErrorKind, FingerprintMode, IdempotencyConfig, IdempotencyEngine,
    IdempotencyStore as _, Identity, OwnerId, Recorded, SharedStore,
};
use retryproof_http::{Caller, Code, Hold, IdempotencyFilter, Policy, Release, Served, Stream};
use retryproof_memory::MemoryStore;
use tokio::time::sleep;
use tower::ServiceExt as _;

use crate::faulty::{Fault, Faulty};
use crate::world::{Annotated, STD, post, request};

const SEC: Duration = Duration::from_secs(1);
const QUICK: Policy = STD.with_wait_timeout(Duration::ZERO);

/// The outcomes in the log of this thread.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Logged {
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter("debug,retryproof::call=off")
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn outcomes(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
        let lines = text.lines().filter(|line| line.contains("retryproof::outcome"));
        let outcome = |line: &str| {
            let (_, rest) = line.split_once("outcome=\"").expect("an outcome");
            rest.split('"').next().unwrap_or_default().to_owned()
        };
        lines.map(outcome).collect()
    }
}

/// The outcomes that an observer has received.
#[derive(Debug, Default)]
struct Heard {
    outcomes: Mutex<Vec<String>>,
    calls: Mutex<Vec<&'static str>>,
}

impl Heard {
    fn end(&self, outcome: &str) {
        self.outcomes.lock().push(outcome.to_owned());
    }

    fn outcomes(&self) -> Vec<String> {
        std::mem::take(&mut *self.outcomes.lock())
    }
}

impl Observer for Heard {
    fn completed(&self, _: LeaseEvent<'_>, _: Recorded) {
        self.end("executed");
    }

    fn failed(&self, _: LeaseEvent<'_>, phase: Phase) {
        self.end(phase.outcome());
    }

    fn lost(&self, _: LeaseEvent<'_>) {
        self.end("lost");
    }

    fn replayed(&self, _: CallEvent<'_>, _: Option<&HolderNote>) {
        self.end("replayed");
    }

    fn mismatch(&self, _: CallEvent<'_>) {
        self.end("mismatch");
    }

    fn not_replayable(&self, _: CallEvent<'_>) {
        self.end("not_replayable");
    }

    fn in_flight(&self, _: CallEvent<'_>, _: Duration) {
        self.end("in_flight");
    }

    fn refused(&self, _: CallEvent<'_>, _: ErrorKind) {
        self.end("refused");
    }

    fn store_called(&self, event: StoreCallEvent) {
        self.calls.lock().push(event.operation);
    }
}

/// A filter with an observer.
struct World {
    filter: IdempotencyFilter,
    heard: Arc<Heard>,
}

impl World {
    fn on(store: impl Into<SharedStore>, with: impl FnOnce(&mut IdempotencyConfig)) -> Self {
        let mut config = IdempotencyConfig::default();
        with(&mut config);
        let heard = Arc::<Heard>::default();
        let engine = IdempotencyEngine::builder(store)
            .config(config)
            .observer(Arc::clone(&heard))
            .build()
            .unwrap();
        let filter = IdempotencyFilter::builder(engine).callers_share_keys().build().unwrap();
        Self { filter, heard }
    }

    fn new() -> Self {
        Self::on(MemoryStore::new(), |_| {})
    }

    /// Creates a layer around a handler that does what the request's body says.
    fn layered(&self) -> Router {
        Router::new().route("/pay", any(handler).layer(self.filter.guard(QUICK)))
    }
}

async fn handler(body: String) -> Response {
    match &*body {
        "release" => (Release, "nothing happened").into_response(),
        "hold" => (Hold, "who knows").into_response(),
        "stream" => (Stream, "as it comes").into_response(),
        "break" => Body::new(Breaks).into_response(),
        "slow" => {
            sleep(3 * SEC).await;
            "done".into_response()
        }
        "forge" => {
            let mut response = "forged".into_response();
            response.extensions_mut().insert(Served::Unguarded);
            response
        }
        _ => "done".into_response(),
    }
}

/// A body that breaks off.
struct Breaks;

impl http_body::Body for Breaks {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(Some(Err(io::Error::other("it breaks off"))))
    }
}

/// Sends a request, and returns what a layer outside of the guard reads from the response.
async fn served(app: &Router, request: Request<Body>) -> (Option<Served>, Option<Recorded>) {
    let Ok(response) = app.clone().oneshot(request).await;
    let extensions = response.extensions();
    (extensions.get().copied(), extensions.get().copied())
}

#[tokio::test(start_paused = true)]
async fn http_18_run_8_each_answer_says_how_it_was_served_as_the_log_and_the_observers_do() {
    let (log, _logging) = Logged::start();
    for (what, store) in
        [("in place", SharedStore::from(MemoryStore::new())), ("awaited", Faulty::new().into())]
    {
        let world = World::on(store, |config| config.web.max_body_bytes = 20);
        let app = world.layered();
        let slow = tokio::spawn({
            let app = app.clone();
            async move { served(&app, post("/pay", "s", "slow")).await }
        });
        sleep(SEC).await;
        let (yes, tombstone) = (Some(Recorded::Yes), Some(Recorded::Tombstone));
        for (request, expected, recorded) in [
            (post("/pay", "k", "1"), Served::Executed, yes),
            (post("/pay", "k", "1"), Served::Replayed, None),
            (post("/pay", "k", "2"), Served::Mismatch, None),
            (post("/pay", "r", "release"), Served::Released, None),
            (post("/pay", "h", "hold"), Served::Failed, None),
            (post("/pay", "h", "hold"), Served::InFlight, None),
            (post("/pay", "s", "slow"), Served::InFlight, None),
            (post("/pay", "t", "stream"), Served::Executed, tombstone),
            (post("/pay", "t", "stream"), Served::NotReplayable, None),
            (post("/pay", "t", "2"), Served::Mismatch, None),
            (post("/pay", "b", "break"), Served::Executed, None),
            (post("/pay", "b", "break"), Served::NotReplayable, None),
            (post("/pay", "f", "forge"), Served::Executed, yes),
            (post("/pay", "f", "forge"), Served::Replayed, None),
        ] {
            let key = request.headers()["idempotency-key"].clone();
            let answer = served(&app, request).await;
            assert_eq!(answer, (Some(expected), recorded), "{what}: {key:?}");
            assert_eq!(log.outcomes(), [expected.as_str()], "{what}: {key:?}");
            assert_eq!(world.heard.outcomes(), [expected.as_str()], "{what}: {key:?}");
        }
        assert_eq!(slow.await.unwrap(), (Some(Served::Executed), yes));
        assert_eq!(log.outcomes(), ["executed"]);
        assert_eq!(world.heard.outcomes(), ["executed"]);
        // A request that ends before the engine is called has no outcome.
        for (request, code) in [
            (request(Method::POST, "/pay", &[], ""), Code::KeyMissing),
            (post("/pay", "a,b", ""), Code::KeyInvalid),
            (post("/pay", "k", "x".repeat(21)), Code::BodyTooLarge),
        ] {
            assert_eq!(served(&app, request).await.0, Some(Served::Refused(code)), "{what}");
        }
        let passed = request(Method::GET, "/pay", &[("idempotency-key", "k")], "");
        assert_eq!(served(&app, passed).await, (Some(Served::Unguarded), None), "{what}");
        assert_eq!((log.outcomes(), world.heard.outcomes()), (Vec::new(), Vec::new()), "{what}");
        world.filter.shutdown(Duration::ZERO).await;
        let closing = served(&app, post("/pay", "new", "")).await.0;
        assert_eq!(closing, Some(Served::Refused(Code::ShuttingDown)));
        assert_eq!(log.outcomes(), ["refused"]);
        assert_eq!(world.heard.outcomes(), ["refused"]);
        assert!(world.heard.calls.lock().contains(&"acquire"), "{what}");
        assert!(world.heard.calls.lock().contains(&"complete"), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_18_run_8_fp_3_a_record_of_another_algorithm_is_told_as_it_is_judged() {
    let (log, _logging) = Logged::start();
    let store = Faulty::new();
    let first = World::on(store.clone(), |config| config.web.fingerprint = FingerprintMode::Body);
    let later = World::on(store, |config| config.web.fingerprint = FingerprintMode::Json);
    served(&first.layered(), post("/pay", "k", "[1]")).await;
    drop(log.outcomes());
    for (body, expected) in [("[1]", Served::Replayed), ("[2]", Served::Mismatch)] {
        let answer = served(&later.layered(), post("/pay", "k", body)).await.0;
        assert_eq!(answer, Some(expected));
        assert_eq!(log.outcomes(), [expected.as_str()]);
        assert_eq!(later.heard.outcomes(), [expected.as_str()]);
    }
}

#[tokio::test(start_paused = true)]
async fn http_18_run_8_a_record_that_cannot_be_sent_is_refused_and_not_told_as_replayed() {
    let (log, _logging) = Logged::start();
    let store = Faulty::new();
    let world = World::on(store.clone(), |_| {});
    let (identity, owner) = (Identity::of("std", "-:k").unwrap(), OwnerId::new());
    let _ = store.acquire(&identity, &AcquireRequest::new(owner, SEC, 60 * SEC)).await;
    // The envelope is intact, but its content is not a response.
    let value = retryproof_core::Payload::new(retryproof_core::CodecId::HTTP, 1, b"");
    let done = Completion::new(value.into_envelope(), 60 * SEC, None);
    let _ = store.complete(&identity, owner, &done).await;
    let answer = served(&world.layered(), post("/pay", "k", "")).await.0;
    assert_eq!(answer, Some(Served::Refused(Code::RecordUnreadable)));
    assert_eq!((log.outcomes(), world.heard.outcomes()), both("refused"));
    store.fault("acquire", Fault::Fails(ErrorKind::Unavailable));
    let answer = served(&world.layered(), post("/pay", "k", "")).await.0;
    assert_eq!(answer, Some(Served::Refused(Code::StoreUnavailable)));
    assert_eq!((log.outcomes(), world.heard.outcomes()), both("refused"));
}

#[tokio::test(start_paused = true)]
async fn http_18_run_8_a_run_that_was_taken_over_is_lost_and_an_unrecorded_one_unconfirmed() {
    for policy in [CompletionFailurePolicy::LogAndReturn, CompletionFailurePolicy::Propagate] {
        let (log, _logging) = Logged::start();
        let store = Faulty::new();
        let world = World::on(store.clone(), |config| config.completion_failure_policy = policy);
        let short = world.filter.guard(QUICK.with_lease(SEC));
        let app = Router::new().route("/pay", any(handler).layer(short));
        store.fault("extend", Fault::Fails(ErrorKind::Unavailable));
        let holder = tokio::spawn({
            let app = app.clone();
            async move { served(&app, post("/pay", "k", "slow")).await }
        });
        sleep(2 * SEC).await;
        store.heal();
        let taker = served(&app, post("/pay", "k", "1")).await;
        assert_eq!(taker, (Some(Served::Executed), Some(Recorded::Yes)));
        assert_eq!(holder.await.unwrap(), (Some(Served::Lost), None));
        assert_eq!(log.outcomes(), ["executed", "lost"]);
        assert_eq!(world.heard.outcomes(), ["executed", "lost"]);

        store.fault("complete", Fault::Fails(ErrorKind::Unexpected));
        let answer = served(&app, post("/pay", "u", "")).await;
        let told = (policy == CompletionFailurePolicy::LogAndReturn).then_some(Recorded::No);
        assert_eq!(answer, (Some(Served::Unconfirmed), told));
        assert_eq!((log.outcomes(), world.heard.outcomes()), both("executed"));
    }
}

/// Returns the expected outcomes in the log and at the observer: in both, only `outcome`.
fn both(outcome: &str) -> (Vec<String>, Vec<String>) {
    (vec![outcome.to_owned()], vec![outcome.to_owned()])
}

/// An extractor that rejects every request.
struct Nobody;

impl<S: Sync> FromRequestParts<S> for Nobody {
    type Rejection = StatusCode;

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        Err(StatusCode::UNAUTHORIZED)
    }
}

#[tokio::test(start_paused = true)]
async fn http_18_an_annotated_endpoint_says_how_each_answer_was_served() {
    static POLICY: Policy = STD;
    let world = World::on(MemoryStore::new(), |config| config.web.required = false);
    let keyless = |path| request(Method::POST, path, &[], "");
    let app = Router::new()
        .route("/pay", on_post(Annotated(&POLICY, handler)))
        .route("/nobody", on_post(Annotated(&POLICY, |_: Nobody, _: String| async { "no" })))
        .route("/json", on_post(Annotated(&POLICY, |_: axum::Json<u32>| async { "no" })))
        .with_state(world.filter.clone());
    for (request, expected) in [
        (post("/pay", "k", ""), Served::Executed),
        (post("/pay", "k", ""), Served::Replayed),
        (post("/pay", "k", "2"), Served::Mismatch),
        (post("/pay", "a,b", ""), Served::Refused(Code::KeyInvalid)),
        (keyless("/pay"), Served::Unguarded),
        // Of these three requests, the first is rejected before its key is looked up, the second
        // after the grant. The third has no key.
        (post("/nobody", "n", ""), Served::Unguarded),
        (post("/json", "j", "no json"), Served::Released),
        (keyless("/nobody"), Served::Unguarded),
    ] {
        let what = format!("{request:?}");
        assert_eq!(served(&app, request).await.0, Some(expected), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_18_a_refusal_of_the_caller_hook_is_told_as_refused() {
    for answers in [true, false] {
        let hook = move |_: &Parts| match answers {
            true => Caller::refuse(http::Response::new("slow down")),
            false => Caller::Absent,
        };
        let engine = IdempotencyEngine::new(MemoryStore::new());
        let filter = IdempotencyFilter::builder(engine).caller(hook).build().unwrap();
        let app = Router::new().route("/pay", any(handler).layer(filter.guard(STD)));
        let answer = served(&app, post("/pay", "k", "")).await.0;
        assert_eq!(answer, Some(Served::Refused(Code::CallerMissing)), "{answers}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_18_the_outermost_guard_of_a_request_says_how_its_answer_was_served() {
    let (inner, outer) = (World::new(), World::new());
    let mail = inner.layered();
    // This guarded handler returns the response of another guarded call.
    let order = move || {
        let mail = mail.clone();
        async move { mail.oneshot(post("/pay", "m", "")).await }
    };
    let guarded = Router::new().route("/order", any(order.clone()).layer(outer.filter.guard(STD)));
    let served_by = async |key| served(&guarded, post("/order", key, "")).await.0;
    assert_eq!(served_by("a").await, Some(Served::Executed));
    assert_eq!(
        served_by("b").await,
        Some(Served::Executed),
        "not replayed, although the inner call is"
    );
    assert_eq!(served_by("b").await, Some(Served::Replayed));
    // The layer does not guard GET, but the annotated endpoint inside it does.
    static POLICY: Policy = STD;
    let endpoint = any(Annotated(&POLICY, handler)).layer(outer.filter.guard(STD));
    let app = Router::new().route("/pay", endpoint).with_state(inner.filter.clone());
    let get = || request(Method::GET, "/pay", &[("idempotency-key", "g")], "");
    assert_eq!(served(&app, get()).await.0, Some(Served::Executed));
    assert_eq!(served(&app, get()).await.0, Some(Served::Replayed));
    // The layer guards POST, so the endpoint inside it does not guard the request again.
    let layered = || post("/pay", "l", "");
    assert_eq!(served(&app, layered()).await.0, Some(Served::Executed));
    assert_eq!(served(&app, layered()).await.0, Some(Served::Replayed));
}

#[tokio::test(start_paused = true)]
async fn http_18_an_outer_layer_counts_answers_by_how_they_were_served() {
    let counts = Arc::<Mutex<Vec<String>>>::default();
    let count = {
        let counts = Arc::clone(&counts);
        move |response: Response| {
            let served = response.extensions().get::<Served>().copied();
            counts.lock().push(served.map_or("no guard", Served::as_str).to_owned());
            response
        }
    };
    let app = World::new().layered().route("/open", any(|| async { "open" }));
    let app = app.layer(tower::util::MapResponseLayer::new(count));
    for (path, key) in [("/pay", "k"), ("/pay", "k"), ("/open", "k"), ("/pay", "a,b")] {
        let Ok(_) = app.clone().oneshot(post(path, key, "")).await;
    }
    assert_eq!(*counts.lock(), ["executed", "replayed", "no guard", "refused"]);
}

#[cfg(feature = "grpc")]
#[tokio::test(start_paused = true)]
async fn http_18_answers_over_grpc_say_how_they_were_served() {
    use retryproof_http::GuardedBody;
    use tower::{Layer as _, service_fn};

    let world = World::on(MemoryStore::new(), |config| config.web.required = false);
    let method = service_fn(|request: Request<GuardedBody<Body>>| async move {
        let status = if request.uri().path().ends_with("Refuse") { "5" } else { "0" };
        let response = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", status)
            .header("retryproof-fate", if status == "5" { "release" } else { "store" });
        Ok::<_, std::convert::Infallible>(response.body(Body::empty()).unwrap())
    });
    let service = world.filter.grpc(QUICK).streaming("/s.S/Watch").layer(method);
    for (path, key, expected) in [
        ("/s.S/Charge", "k", Served::Executed),
        ("/s.S/Charge", "k", Served::Replayed),
        ("/s.S/Other", "k", Served::Mismatch),
        ("/s.S/Refuse", "r", Served::Released),
        ("/s.S/Watch", "w", Served::Executed),
        ("/s.S/Charge", "a,b", Served::Refused(Code::KeyInvalid)),
        ("/s.S/Charge", "", Served::Unguarded),
    ] {
        let call = Request::post(path).header("content-type", "application/grpc");
        let call = if key.is_empty() { call } else { call.header("idempotency-key", key) };
        let Ok(response) = service.clone().oneshot(call.body(Body::empty()).unwrap()).await;
        assert_eq!(response.extensions().get(), Some(&expected), "{path} {key}");
    }
}

#[cfg(feature = "grpc")]
#[tokio::test(start_paused = true)]
async fn http_18_cmp_4_an_unconfirmed_completion_has_its_own_value_over_grpc() {
    use retryproof_http::GuardedBody;
    use tower::{Layer as _, service_fn};

    let store = Faulty::new();
    store.fault("complete", Fault::Fails(ErrorKind::Unexpected));
    let world = World::on(store, |_| {});
    let method = service_fn(|_: Request<GuardedBody<Body>>| async {
        let response = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "0");
        Ok::<_, std::convert::Infallible>(response.body(Body::empty()).unwrap())
    });
    let service = world.filter.grpc(QUICK).streaming("/s.S/Watch").layer(method);
    for path in ["/s.S/Charge", "/s.S/Watch"] {
        let call = Request::post(path).header("content-type", "application/grpc");
        let call = call.header("idempotency-key", path).body(Body::empty()).unwrap();
        let Ok(response) = service.clone().oneshot(call).await;
        assert_eq!(response.extensions().get(), Some(&Served::Unconfirmed), "{path}");
    }
}

#[test]
fn http_18_each_name_is_that_of_the_outcome() {
    for (served, name) in [
        (Served::Executed, "executed"),
        (Served::Unconfirmed, "unconfirmed"),
        (Served::Released, "released"),
        (Served::Failed, "failed"),
        (Served::Lost, "lost"),
        (Served::Replayed, "replayed"),
        (Served::Mismatch, "mismatch"),
        (Served::NotReplayable, "not_replayable"),
        (Served::InFlight, "in_flight"),
        (Served::Refused(Code::TooBusy), "refused"),
        (Served::Unguarded, "unguarded"),
    ] {
        assert_eq!(served.as_str(), name);
    }
}
