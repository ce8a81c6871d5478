// SPDX-License-Identifier: MIT OR Apache-2.0
// CMP-7, ANN-3: an endpoint's state has to provide the engine that opens its transactions
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
