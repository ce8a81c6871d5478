// SPDX-License-Identifier: MIT OR Apache-2.0
//! The routes: the same handler under different guards.

use std::time::Duration;

use axum::extract::{FromRef, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use bytes::Bytes;
use retryproof::http::{IdempotencyFilter, Methods, Policy};
use retryproof::{Error, IdempotencyEngine, WebConfig, idempotent};
use tower_http::catch_panic::CatchPanicLayer;

use crate::run::{User, run};
use crate::runs;

#[derive(Clone, FromRef)]
struct Lab {
    filter: IdempotencyFilter,
    engine: IdempotencyEngine,
}

#[idempotent(http, scope = "lab.std", ttl = "PT1H", lease = "PT5S", wait_timeout = "PT2S")]
async fn standard(_user: User, headers: HeaderMap, body: Bytes) -> Response {
    run(&headers, &body).await
}

#[idempotent(http, scope = "lab.now", ttl = "PT1H", lease = "PT5S", wait_timeout = "PT0S")]
async fn now(_user: User, headers: HeaderMap, body: Bytes) -> Response {
    run(&headers, &body).await
}

#[idempotent(http, scope = "lab.patient", ttl = "PT1H", lease = "PT2S", wait_timeout = "PT10S")]
async fn patient(_user: User, headers: HeaderMap, body: Bytes) -> Response {
    run(&headers, &body).await
}

#[idempotent(http, scope = "lab.short", ttl = "PT2S", lease = "PT1S", wait_timeout = "PT3S")]
async fn short(_user: User, headers: HeaderMap, body: Bytes) -> Response {
    run(&headers, &body).await
}

/// An endpoint with the default scope: method and route.
#[idempotent(http, ttl = "PT1H", lease = "PT5S", wait_timeout = "PT2S")]
async fn orders(_user: User, headers: HeaderMap, body: Bytes) -> Response {
    run(&headers, &body).await
}

#[idempotent(http, scope = "lab.tenant", ttl = "PT1H", lease = "PT5S", wait_timeout = "PT2S")]
async fn tenant(_user: User, headers: HeaderMap, body: Bytes) -> Response {
    run(&headers, &body).await
}

/// A handler without an annotation. The layer guards it on `/lab/layered`; nothing guards it on
/// `/open/echo`.
async fn plain(_user: User, headers: HeaderMap, body: Bytes) -> Response {
    run(&headers, &body).await
}

/// Returns a tenant's name. Names that are not text are encoded after a character that cannot occur
/// in a header's text, so that they stay distinct.
pub(crate) fn named(name: &HeaderValue) -> String {
    match std::str::from_utf8(name.as_bytes()) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("\u{1}{:?}", name.as_bytes()),
    }
}

async fn read_runs(Path(tag): Path<String>) -> Json<runs::Counts> {
    Json(runs::read(&tag))
}

async fn health(State(engine): State<IdempotencyEngine>) -> Response {
    let store = engine.store().clone();
    let name = retryproof::IdempotencyStore::profile(&store).name;
    match engine.health().await {
        Ok(()) => Json(serde_json::json!({ "store": name, "answers": true })).into_response(),
        Err(error) => {
            tracing::warn!(%error, "the store does not answer");
            let told = Json(serde_json::json!({ "store": name, "answers": false }));
            (StatusCode::SERVICE_UNAVAILABLE, told).into_response()
        }
    }
}

/// Returns all routes, and one of their two filters for the shutdown. The filters share one
/// engine.
pub(crate) fn router(
    engine: &IdempotencyEngine,
    web: &WebConfig,
) -> Result<(Router, IdempotencyFilter), Error> {
    let shared = IdempotencyFilter::builder(engine.clone())
        .config(web.clone())
        .callers_share_keys()
        .build()?;
    let by_tenant = IdempotencyFilter::builder(engine.clone())
        .config(web.clone())
        .caller(|request: &Parts| request.headers.get("x-tenant").map(named))
        .absent_callers_share()
        .build()?;
    let layered = Policy::new("lab.layered")
        .with_ttl(Duration::from_secs(3600))
        .with_lease(Duration::from_secs(5))
        .with_wait_timeout(Duration::from_secs(2))
        .methods(Methods::All);

    let lab = Lab { filter: shared.clone(), engine: engine.clone() };
    let router = Router::new()
        .route("/lab/std", any(standard))
        .route("/lab/now", any(now))
        .route("/lab/patient", any(patient))
        .route("/lab/short", any(short))
        .route("/lab/orders/{id}", any(orders))
        .route("/lab/layered", any(plain).layer(shared.guard(layered)))
        .route("/open/echo", any(plain))
        .route("/open/runs/{tag}", get(read_runs))
        .route("/open/health", get(health))
        .with_state(lab)
        .merge(Router::new().route("/lab/tenant", any(tenant)).with_state(by_tenant))
        .layer(CatchPanicLayer::new());
    Ok((router, shared))
}
