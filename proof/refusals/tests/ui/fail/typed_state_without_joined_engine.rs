// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3, CMP-7: where the transactions come from is known when the endpoint is mounted
use axum::Router;
use axum::extract::FromRef;
use axum::routing::post;
use retryproof::http::{GuardedTx, IdempotencyFilter};
use retryproof::idempotent;

struct Tx;

#[derive(Clone, FromRef)]
struct App {
    filter: IdempotencyFilter,
}

#[idempotent(http)]
async fn pay(_tx: GuardedTx<Tx>, body: String) -> String {
    body
}

fn mount(app: App) -> Router {
    Router::new().route("/payments", post(pay)).with_state(app)
}

fn main() {
    let _ = mount;
}
