// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3: every argument of an endpoint has to be an extractor
use axum::Router;
use axum::routing::post;
use retryproof::http::IdempotencyFilter;
use retryproof::idempotent;

struct Order;

#[idempotent(http)]
async fn pay(order: Order) -> String {
    drop(order);
    String::new()
}

fn mount(filter: IdempotencyFilter) -> Router {
    Router::new().route("/payments", post(pay)).with_state(filter)
}

fn main() {}
