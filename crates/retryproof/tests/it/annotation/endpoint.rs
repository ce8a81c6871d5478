// SPDX-License-Identifier: MIT OR Apache-2.0
//! Annotated axum endpoints, mounted and called.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRef, FromRequestParts, Path, State};
use axum::handler::Handler;
use axum::http::request::Parts;
use axum::http::{Method, Request, Response, StatusCode};
use axum::routing::{any, post};
use axum::{Json, Router};
use retryproof::http::{IdempotencyFilter, Policy};
use retryproof::{IdempotencyEngine, MemoryStore, idempotent};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use super::Runs;

#[derive(Clone)]
struct App {
    filter: IdempotencyFilter,
    runs: Arc<Runs>,
}

impl FromRef<App> for IdempotencyFilter {
    fn from_ref(app: &App) -> Self {
        app.filter.clone()
    }
}

impl FromRef<App> for Arc<Runs> {
    fn from_ref(app: &App) -> Self {
        Arc::clone(&app.runs)
    }
}

impl App {
    fn new() -> Self {
        let engine = IdempotencyEngine::new(MemoryStore::new());
        let filter =
            IdempotencyFilter::builder(engine).callers_share_keys().build().expect("a filter");
        Self { filter, runs: Arc::default() }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    cents: u32,
}

/// The caller, from a header; a request without it is refused.
struct User(String);

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        let user = parts.headers.get("x-user").and_then(|user| user.to_str().ok());
        user.map(|user| Self(user.to_owned())).ok_or(StatusCode::UNAUTHORIZED)
    }
}

#[idempotent(http, ttl = "PT24H", lease = "PT30S", wait_timeout = "PT2.5S", scope = "payments")]
async fn pay(
    State(runs): State<Arc<Runs>>,
    user: User,
    Json(order): Json<Order>,
) -> (StatusCode, String) {
    (StatusCode::CREATED, format!("{} {} {}", user.0, order.cents, runs.next()))
}

#[idempotent(http)]
async fn touch(State(runs): State<Arc<Runs>>, method: Method) -> String {
    format!("{method} {}", runs.next())
}

#[idempotent(http)]
async fn whoami(user: User) -> String {
    user.0
}

fn request(method: Method, path: &str, key: &str, user: &str, body: &'static str) -> Request<Body> {
    let mut request =
        Request::builder().method(method).uri(path).header("content-type", "application/json");
    if !key.is_empty() {
        request = request.header("idempotency-key", key);
    }
    if !user.is_empty() {
        request = request.header("x-user", user);
    }
    request.body(Body::from(body)).expect("a request")
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.expect("no error")
}

/// Sends a request. Returns the answer's status, whether it is a replay, and its body.
async fn answer(app: &Router, request: Request<Body>) -> (u16, bool, String) {
    let response = send(app, request).await;
    let replayed =
        response.headers().get("idempotent-replayed").is_some_and(|value| value == "true");
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    (status, replayed, String::from_utf8(body.to_vec()).expect("text"))
}

fn paying(app: &App) -> Router {
    Router::new().route("/payments", post(pay)).with_state(app.clone())
}

/// The annotation leaves the `expect` on the function. The function is never mounted, and the
/// compiler reports no other dead code.
#[idempotent(http)]
#[expect(dead_code, reason = "ANN-1: mounted by the next release")]
async fn not_mounted_yet(body: String) -> String {
    std::future::ready(body).await
}

#[tokio::test]
async fn ann_3_http_8_the_mounted_handler_is_the_guarded_one() {
    let app = App::new();
    let router = paying(&app);
    let order = || request(Method::POST, "/payments", "k1", "ada", r#"{"cents":5}"#);
    assert_eq!(answer(&router, order()).await, (201, false, "ada 5 1".to_owned()));
    assert_eq!(answer(&router, order()).await, (201, true, "ada 5 1".to_owned()));
    let other = request(Method::POST, "/payments", "k1", "ada", r#"{"cents":6}"#);
    assert_eq!(answer(&router, other).await.0, 422);
    let keyless = request(Method::POST, "/payments", "", "ada", r#"{"cents":5}"#);
    assert_eq!(answer(&router, keyless).await.0, 400);
    assert_eq!(app.runs.count(), 1);
}

#[tokio::test]
async fn ann_6_an_extractor_that_refuses_stands_before_a_replay() {
    let app = App::new();
    let router = paying(&app);
    let order = |user| request(Method::POST, "/payments", "k1", user, r#"{"cents":5}"#);
    // The extractor rejects the request before the first run, and the rejection is not stored.
    assert_eq!(answer(&router, order("")).await, (401, false, String::new()));
    assert_eq!(answer(&router, order("ada")).await.0, 201);
    // The extractor also rejects a request whose answer could be replayed.
    assert_eq!(answer(&router, order("")).await, (401, false, String::new()));
    assert_eq!(answer(&router, order("ada")).await, (201, true, "ada 5 1".to_owned()));
}

/// The last argument counts as "the body" only if it reads the body.
#[tokio::test]
async fn ann_6_a_last_argument_without_a_body_stands_before_a_replay_too() {
    let app = App::new();
    let router = Router::new().route("/me", any(whoami)).with_state(app.clone());
    let me = |user| request(Method::PUT, "/me", "k1", user, "");
    assert_eq!(answer(&router, me("ada")).await, (200, false, "ada".to_owned()));
    assert_eq!(answer(&router, me("")).await.0, 401);
    assert_eq!(answer(&router, me("ada")).await, (200, true, "ada".to_owned()));
}

#[tokio::test]
async fn ann_6_a_rejected_body_is_unstored_and_leaves_the_key_free() {
    let app = App::new();
    let router = paying(&app);
    let broken = request(Method::POST, "/payments", "k1", "ada", r#"{"cents":"#);
    let (status, replayed, _) = answer(&router, broken).await;
    assert_eq!((status, replayed), (400, false));
    let order = request(Method::POST, "/payments", "k1", "ada", r#"{"cents":5}"#);
    assert_eq!(answer(&router, order).await, (201, false, "ada 5 1".to_owned()));
}

#[tokio::test]
async fn http_16_the_default_scope_is_method_and_route() {
    let app = App::new();
    let routes = Router::new().route("/a/{id}", any(touch)).route("/b/{id}", any(touch));
    let router = routes.with_state(app.clone());
    for (method, path, expected) in [
        (Method::POST, "/a/1", (200, false, "POST 1")),
        (Method::POST, "/a/1", (200, true, "POST 1")),
        (Method::PUT, "/a/1", (200, false, "PUT 2")),
        (Method::POST, "/b/1", (200, false, "POST 3")),
    ] {
        let (status, replayed, body) = answer(&router, request(method, path, "k1", "", "")).await;
        assert_eq!((status, replayed, body.as_str()), expected);
    }
    // Both paths match one route, so they share the record, but their fingerprints differ.
    assert_eq!(answer(&router, request(Method::POST, "/a/2", "k1", "", "")).await.0, 422);
}

#[tokio::test]
async fn ann_1_the_function_itself_stays_in_reach() {
    let runs: Arc<Runs> = Arc::default();
    let answer = pay::call(State(runs), User("ada".to_owned()), Json(Order { cents: 5 })).await;
    assert_eq!(answer, (StatusCode::CREATED, "ada 5 1".to_owned()));
}

/// The settings are known at compile time; a setting is absent if the configured default applies
/// (CTX-3).
const _: () = {
    assert!(matches!(pay::POLICY.ttl(), Some(d) if d.as_secs() == 86_400));
    assert!(matches!(pay::POLICY.lease(), Some(d) if d.as_secs() == 30));
    assert!(matches!(pay::POLICY.wait_timeout(), Some(d) if d.as_millis() == 2_500));
    assert!(touch::POLICY.scope().is_none() && touch::POLICY.lease().is_none());
};

#[test]
fn ann_1_the_policy_is_what_the_attribute_says() {
    let expected = Policy::new("payments")
        .with_ttl(Duration::from_secs(86_400))
        .with_lease(Duration::from_secs(30))
        .with_wait_timeout(Duration::from_millis(2_500));
    assert_eq!(pay::POLICY, expected);
    assert_eq!(format!("{pay:?}"), "pay");
}

#[idempotent(http)]
async fn nothing() {}

type P = Path<u8>;

#[idempotent(http)]
#[expect(
    clippy::too_many_arguments,
    reason = "as many as axum takes; and attributes stay with the function"
)]
async fn sixteen(
    a: P,
    _: P,
    _: P,
    _: P,
    _: P,
    _: P,
    _: P,
    _: P,
    _: P,
    _: P,
    _: P,
    _: P,
    _: P,
    _: P,
    _: P,
    body: String,
) -> String {
    format!("{} {body}", a.0)
}

#[tokio::test]
async fn ann_1_no_argument_and_as_many_as_axum_takes() {
    let app = App::new();
    // The router's state can be the filter itself, and not only a struct that contains the filter.
    let routes = Router::new().route("/nothing", any(nothing)).route("/sixteen/{id}", any(sixteen));
    let router = routes.with_state(app.filter.clone());
    for replayed in [false, true] {
        let empty = request(Method::POST, "/nothing", "k1", "", "");
        assert_eq!(answer(&router, empty).await, (200, replayed, String::new()));
        let full = request(Method::POST, "/sixteen/9", "k1", "", "body");
        assert_eq!(answer(&router, full).await, (200, replayed, "9 body".to_owned()));
    }
}

#[idempotent(http)]
async fn countdown(countdown: String) -> String {
    let rest = countdown.len().saturating_sub(1);
    fn inner(rest: usize) -> impl Future<Output = String> + Send {
        self::countdown::call("x".repeat(rest))
    }
    if rest == 0 { countdown } else { format!("{countdown} {}", Box::pin(inner(rest)).await) }
}

/// Inside the function, an argument or a local variable may have the name of the function.
#[tokio::test]
async fn ann_1_an_argument_may_have_the_name_of_the_endpoint() {
    assert_eq!(countdown::call("xxx".to_owned()).await, "xxx xx x");
}

#[tokio::test]
async fn ann_1_an_endpoint_may_be_local_to_a_function() {
    #[idempotent(http, scope = "local")]
    async fn local(State(filter): State<IdempotencyFilter>, body: String) -> String {
        format!("{body} {}", filter.engine().activity().running)
    }
    let router = Router::new().route("/", post(local).put(local)).with_state(App::new().filter);
    for replayed in [false, true] {
        let put = request(Method::PUT, "/", "k1", "", "ada");
        assert_eq!(answer(&router, put).await, (200, replayed, "ada 1".to_owned()));
    }
}

/// The handler is called outside of a router, and with another type of state.
#[tokio::test]
async fn ann_3_the_handler_is_guarded_however_it_is_called() {
    let app = App::new();
    let service = pay.with_state(app.clone());
    for replayed in [false, true] {
        let order = request(Method::POST, "/anywhere", "k1", "ada", r#"{"cents":5}"#);
        let response = service.clone().oneshot(order).await.expect("no error");
        assert_eq!(response.status(), StatusCode::CREATED);
        assert_eq!(response.headers().contains_key("idempotent-replayed"), replayed);
    }
    assert_eq!(app.runs.count(), 1);
}

mod elsewhere {
    //! An endpoint in another module, with another path to the crate and with restricted
    //! visibility.

    pub(super) mod framework {
        pub(in super::super) use ::retryproof;
    }

    /// The annotation turns this function into a struct with this documentation.
    #[retryproof::idempotent(http, scope = "elsewhere", crate = framework::retryproof)]
    #[must_use]
    pub(super) async fn greet(name: String) -> String {
        format!("hello {name}")
    }
}

#[tokio::test]
async fn ann_1_the_crate_may_have_another_path() {
    let router = Router::new().route("/", post(elsewhere::greet)).with_state(App::new().filter);
    for replayed in [false, true] {
        let named = request(Method::POST, "/", "k1", "", "ada");
        assert_eq!(answer(&router, named).await, (200, replayed, "hello ada".to_owned()));
    }
    assert_eq!(elsewhere::greet::call("ada".to_owned()).await, "hello ada");
}
