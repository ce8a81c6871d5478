// SPDX-License-Identifier: MIT OR Apache-2.0
//! Annotated axum handlers: arguments are extracted before the acquire (ANN-6), and the filter
//! comes from the state (ANN-3).

use std::convert::Infallible;

use axum::extract::{FromRef, FromRequestParts, Json, Path};
use axum::response::IntoResponse;
use axum::routing::{any, post as on_post};
use axum::{Extension, Router};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use retryproof_core::Attempt;
use retryproof_http::axum::{IdempotencyKey, Lease};
use retryproof_http::{IdempotencyFilter, Policy};

use crate::world::{Annotated, Runs, STD, filter, filter_with, post, request, send};

static POLICY: Policy = STD;
static BY_ROUTE: Policy = Policy::unnamed();

#[derive(Clone)]
struct App {
    filter: IdempotencyFilter,
    runs: Runs,
}

impl FromRef<App> for IdempotencyFilter {
    fn from_ref(app: &App) -> Self {
        app.filter.clone()
    }
}

/// Authenticates by a header.
struct User(String);

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        let user = parts.headers.get("x-user").ok_or(StatusCode::UNAUTHORIZED)?;
        Ok(Self(user.to_str().map_err(|_| StatusCode::UNAUTHORIZED)?.to_owned()))
    }
}

/// Extracts the counter of runs from the state.
impl FromRequestParts<App> for Runs {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, state: &App) -> Result<Self, Infallible> {
        Ok(state.runs.clone())
    }
}

fn app() -> App {
    App { filter: filter(), runs: Runs::default() }
}

#[tokio::test(start_paused = true)]
async fn ann_3_an_annotated_handler_is_guarded_by_the_filter_in_the_state() {
    let state = app();
    let pay =
        Annotated(
            &POLICY,
            |runs: Runs, body: String| async move { format!("{} {body}", runs.run()) },
        );
    let app = Router::new().route("/pay", on_post(pay)).with_state(state.clone());
    assert_eq!(send(&app, post("/pay", "k", "a")).await.text(), "1 a");
    let again = send(&app, post("/pay", "k", "a")).await;
    assert_eq!((again.text(), again.is_replay()), ("1 a", true));
    assert_eq!(send(&app, post("/pay", "other", "a")).await.text(), "2 a");
    assert_eq!(send(&app, request(Method::POST, "/pay", &[], "a")).await.code(), "key-missing");
    assert_eq!(state.runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn ann_3_the_filter_itself_is_state_enough() {
    let pay = Annotated(&POLICY, |body: String| async move { body });
    let app = Router::new().route("/pay", on_post(pay)).with_state(filter());
    assert_eq!(send(&app, post("/pay", "k", "a")).await.text(), "a");
    assert!(send(&app, post("/pay", "k", "a")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn ann_6_an_extractor_that_authenticates_stands_before_a_replay() {
    let state = app();
    let runs = state.runs.clone();
    let pay = Annotated(&POLICY, move |User(user): User, _: String| async move {
        format!("{} {user}", runs.run())
    });
    let app = Router::new().route("/pay", on_post(pay)).with_state(state.clone());
    let with_user =
        || request(Method::POST, "/pay", &[("idempotency-key", "k"), ("x-user", "ann")], "a");
    // The first response is a refusal. It is not stored, so the key stays free.
    assert_eq!(send(&app, post("/pay", "k", "a")).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(send(&app, with_user()).await.text(), "1 ann");
    // A request without the user is also refused when an answer is stored, and does not get that
    // answer.
    let stranger = send(&app, post("/pay", "k", "a")).await;
    assert_eq!((stranger.status, stranger.text()), (StatusCode::UNAUTHORIZED, ""));
    assert!(send(&app, with_user()).await.is_replay());
    assert_eq!(state.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn ann_6_a_last_argument_that_reads_no_body_authenticates_too() {
    let state = app();
    let runs = state.runs.clone();
    let pay =
        Annotated(&POLICY, move |User(user): User| async move { format!("{} {user}", runs.run()) });
    let app = Router::new().route("/pay", on_post(pay)).with_state(state.clone());
    let with_user =
        || request(Method::POST, "/pay", &[("idempotency-key", "k"), ("x-user", "ann")], "");
    assert_eq!(send(&app, with_user()).await.text(), "1 ann");
    assert_eq!(send(&app, post("/pay", "k", "")).await.status, StatusCode::UNAUTHORIZED);
    assert!(send(&app, with_user()).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn ann_6_a_rejected_body_is_answered_unstored_and_the_key_is_free() {
    let state = app();
    let pay = Annotated(&POLICY, |runs: Runs, Json(order): Json<Vec<u32>>| async move {
        format!("{} {}", runs.run(), order.len())
    });
    let app = Router::new().route("/pay", on_post(pay)).with_state(state.clone());
    let json = |body: &'static str| {
        request(
            Method::POST,
            "/pay",
            &[("idempotency-key", "k"), ("content-type", "application/json")],
            body,
        )
    };
    let refused = send(&app, json("[nonsense")).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(state.runs.count(), 0);
    assert_eq!(send(&app, json("[1,2]")).await.text(), "1 2");
    assert!(send(&app, json("[1,2]")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn http_4_the_filters_limit_is_the_one_knob_behind_an_annotated_handler() {
    // With axum's own limit of 2 MiB, the extractor would refuse this body.
    let large = vec![b'x'; 3 << 20];
    let filter = filter_with(|config| config.web.max_body_bytes = 4 << 20);
    let pay = Annotated(&POLICY, |body: bytes::Bytes| async move { body.len().to_string() });
    let app = Router::new().route("/pay", on_post(pay)).with_state(filter);
    assert_eq!(send(&app, post("/pay", "k", large.clone())).await.text(), large.len().to_string());
    assert!(send(&app, post("/pay", "k", large)).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn http_16_the_default_scope_is_method_and_route_with_names_erased() {
    let filter = filter();
    let handler =
        Annotated(&BY_ROUTE, |lease: Lease| async move { lease.identity().scope().to_string() });
    let app = Router::new()
        .route("/orders/{order}", any(handler.clone()))
        .nest("/api", Router::new().route("/v1/{id}/{*rest}", any(handler.clone())))
        .with_state(filter);
    let scope = async |method, path| {
        send(&app, request(method, path, &[("idempotency-key", "k")], "")).await
    };
    assert_eq!(scope(Method::POST, "/orders/1").await.text(), "POST /orders/{}");
    assert_eq!(scope(Method::PUT, "/orders/1").await.text(), "PUT /orders/{}");
    assert_eq!(scope(Method::POST, "/api/v1/7/x/y").await.text(), "POST /api/v1/{}/{*}");
    // Both paths have the same scope, so requests with the same key share a record. The path is
    // part of the fingerprint (FP-3).
    assert_eq!(scope(Method::POST, "/orders/2").await.code(), "fingerprint-mismatch");
}

#[tokio::test(start_paused = true)]
async fn http_16_a_route_too_long_for_a_scope_is_an_error_of_the_program() {
    let long = format!("/{}", "x".repeat(255));
    let app = Router::new()
        .route(&long, any(Annotated(&BY_ROUTE, |_: String| async { "ran" })))
        .with_state(filter());
    let answer = send(&app, post(&long, "k", "")).await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::INTERNAL_SERVER_ERROR, "scope-invalid")
    );
}

#[tokio::test(start_paused = true)]
async fn http_12_key_and_lease_are_at_the_handlers_hand() {
    let handler = Annotated(&POLICY, |key: IdempotencyKey, lease: Lease| async move {
        assert_eq!(lease.attempt(), Attempt::First);
        assert!(lease.believed_held());
        format!("{} {key:?} {}", key.as_str(), lease.downstream_key("charge").len())
    });
    let layered = |key: IdempotencyKey, lease: Lease, headers: HeaderMap| async move {
        assert!(headers.contains_key("idempotency-key"));
        format!("{} {}", key.as_str(), lease.get().is_some())
    };
    let filter = filter();
    let app = Router::new()
        .route("/pay", on_post(handler))
        .route("/layered", on_post(layered).layer(filter.guard(Policy::new("layered"))))
        .with_state(filter);
    assert_eq!(
        send(&app, post("/pay", "\"a b\"", "")).await.text(),
        "a b IdempotencyKey(3 bytes) 64"
    );
    assert_eq!(send(&app, post("/layered", "k", "")).await.text(), "k true");
}

#[tokio::test(start_paused = true)]
async fn http_3_without_a_key_the_extractors_are_optional() {
    let filter = filter_with(|config| config.web.required = false);
    let open = Annotated(&POLICY, |key: Option<IdempotencyKey>, lease: Option<Lease>| async move {
        format!("{} {}", key.is_some(), lease.is_some())
    });
    let strict = Annotated(&BY_ROUTE, |_: Lease| async { "ran" });
    let app = Router::new()
        .route("/open", on_post(open))
        .route("/strict", on_post(strict))
        .with_state(filter);
    let keyless = |path| request(Method::POST, path, &[], "");
    assert_eq!(send(&app, keyless("/open")).await.text(), "false false");
    assert_eq!(send(&app, post("/open", "k", "")).await.text(), "true true");
    assert_eq!(send(&app, keyless("/strict")).await.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test(start_paused = true)]
async fn ann_6_a_callers_hook_sees_what_the_extractors_put_there() {
    /// Adds the tenant to the extensions, as an authenticating extractor would.
    struct Tenant;
    impl<S: Sync> FromRequestParts<S> for Tenant {
        type Rejection = Infallible;
        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
            let tenant = parts
                .headers
                .get("x-tenant")
                .and_then(|t| t.to_str().ok())
                .unwrap_or_default()
                .to_owned();
            parts.extensions.insert(tenant);
            Ok(Self)
        }
    }
    let engine = filter().engine().clone();
    let filter = IdempotencyFilter::builder(engine)
        .caller(|parts: &Parts| parts.extensions.get::<String>().cloned())
        .build()
        .unwrap();
    let runs = Runs::default();
    let app = {
        let runs = runs.clone();
        let pay =
            Annotated(&POLICY, move |_: Tenant, _: String| async move { runs.run().to_string() });
        Router::new().route("/pay", on_post(pay)).with_state(filter)
    };
    let of = |tenant| {
        request(Method::POST, "/pay", &[("idempotency-key", "k"), ("x-tenant", tenant)], "")
    };
    assert_eq!(send(&app, of("a")).await.text(), "1");
    assert_eq!(send(&app, of("b")).await.text(), "2");
    assert!(send(&app, of("a")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn ann_6_path_and_extensions_are_extracted_on_replays_too() {
    let handler = Annotated(
        &POLICY,
        |Path(id): Path<u32>, Extension(tag): Extension<&'static str>| async move {
            format!("{id} {tag}").into_response()
        },
    );
    let routes = Router::new().route("/orders/{id}", on_post(handler)).with_state(filter());
    let app = routes.clone().layer(Extension("tag"));
    assert_eq!(send(&app, post("/orders/7", "k", "")).await.text(), "7 tag");
    assert!(send(&app, post("/orders/7", "k", "")).await.is_replay());
    // Without the layer, the extractor fails even if a response is stored.
    assert_eq!(
        send(&routes, post("/orders/7", "k", "")).await.status,
        StatusCode::INTERNAL_SERVER_ERROR
    );
}

#[tokio::test(start_paused = true)]
async fn http_2_the_key_is_the_clients_whatever_an_extractor_does_to_the_header() {
    /// Removes the header, as a careless extractor might.
    struct Careless;
    impl<S: Sync> FromRequestParts<S> for Careless {
        type Rejection = Infallible;
        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
            parts.headers.remove("idempotency-key");
            Ok(Self)
        }
    }
    let state = app();
    let runs = state.runs.clone();
    let pay =
        Annotated(&POLICY, move |_: Careless, _: String| async move { runs.run().to_string() });
    let app = Router::new().route("/pay", on_post(pay)).with_state(state.clone());
    assert_eq!(send(&app, post("/pay", "a", "")).await.text(), "1");
    assert_eq!(send(&app, post("/pay", "b", "")).await.text(), "2");
    assert!(send(&app, post("/pay", "\"a\"", "")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn http_12_two_lease_arguments_are_one_lease_and_a_copied_extension_is_not_mistaken_for_it() {
    let filter = filter();
    let inner = Annotated(&BY_ROUTE, |key: IdempotencyKey, lease: Lease| async move {
        format!("{} {}", key.as_str(), lease.identity().scope())
    });
    let inner: Router =
        Router::new().route("/inner/{id}", on_post(inner)).with_state(filter.clone());
    let outer = Annotated(
        &POLICY,
        move |lease: (Lease, Lease), request: axum::extract::Request| async move {
            assert_eq!(lease.0.token(), lease.1.token());
            let (mut parts, _) = request.into_parts();
            parts.uri = "/inner/1".parse().unwrap();
            parts.headers.insert("idempotency-key", "inner-key".parse().unwrap());
            let request = axum::extract::Request::from_parts(parts, axum::body::Body::empty());
            let Ok(response) = tower::ServiceExt::oneshot(inner, request).await;
            response
        },
    );
    let app = Router::new().route("/outer", on_post(outer)).with_state(filter);
    let answer = send(&app, post("/outer", "outer-key", "")).await;
    assert_eq!(answer.text(), "inner-key POST /outer/inner/{}");
}
