// SPDX-License-Identifier: MIT OR Apache-2.0
// The attributes below `#[idempotent]`, such as axum's `debug_handler`, get the function unchanged.
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use retryproof::http::IdempotencyFilter;
use retryproof::idempotent;

#[idempotent(http, ttl = "PT1H")]
#[axum::debug_handler(state = IdempotencyFilter)]
async fn pay(State(filter): State<IdempotencyFilter>, pay: String) -> String {
    format!("{pay} {filter:?}")
}

fn main() {
    let _: Router<IdempotencyFilter> = Router::new().route("/", post(pay));
}
