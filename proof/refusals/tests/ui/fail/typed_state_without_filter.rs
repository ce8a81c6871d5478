// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3: an endpoint cannot be mounted if its state has no filter
use axum::Router;
use axum::routing::post;
use retryproof::idempotent;

#[derive(Clone)]
struct App;

#[idempotent(http)]
async fn pay(body: String) -> String {
    body
}

fn main() {
    let _: Router = Router::new().route("/payments", post(pay)).with_state(App);
    let _: Router = Router::new().route("/payments", post(pay));
}
