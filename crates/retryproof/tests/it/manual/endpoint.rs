// SPDX-License-Identifier: MIT OR Apache-2.0
//! The endpoint of the attribute's manual: it compiles, and a retry is replayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::extract::{FromRef, State};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use retryproof::http::IdempotencyFilter;
use retryproof::{IdempotencyEngine, MemoryStore, idempotent};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

#[derive(Clone)]
struct App {
    idempotency: IdempotencyFilter,
    payments: Arc<Payments>,
}

impl FromRef<App> for IdempotencyFilter {
    fn from_ref(app: &App) -> Self {
        app.idempotency.clone()
    }
}

impl FromRef<App> for Arc<Payments> {
    fn from_ref(app: &App) -> Self {
        Arc::clone(&app.payments)
    }
}

#[derive(Deserialize)]
struct Order {
    cents: u64,
}

#[derive(Serialize)]
struct Receipt {
    total: u64,
}

struct AppError;

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        StatusCode::PAYMENT_REQUIRED.into_response()
    }
}

#[derive(Default)]
struct Payments(AtomicU64);

impl Payments {
    async fn charge(&self, order: &Order) -> Result<Receipt, AppError> {
        if order.cents == 0 {
            return Err(AppError);
        }
        Ok(Receipt { total: self.0.fetch_add(order.cents, Ordering::Relaxed) + order.cents })
    }
}

#[idempotent(http, ttl = "PT24H", lease = "PT30S", wait_timeout = "PT10S", scope = "payments")]
async fn pay(
    State(payments): State<Arc<Payments>>,
    Json(order): Json<Order>,
) -> Result<Json<Receipt>, AppError> {
    Ok(Json(payments.charge(&order).await?))
}

#[tokio::test]
async fn ann_1_the_endpoint_of_the_manual_is_replayed() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let idempotency = IdempotencyFilter::builder(engine).callers_share_keys().build().unwrap();
    let payments = Arc::new(Payments::default());
    let app = App { idempotency, payments: Arc::clone(&payments) };

    let app = Router::new().route("/payments", post(pay)).with_state(app);

    for _ in 0..2 {
        let request = Request::post("/payments")
            .header("idempotency-key", "7f0c")
            .header("content-type", "application/json")
            .body(Body::from(r#"{"cents":500}"#))
            .unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(payments.0.load(Ordering::Relaxed), 500);
}
