// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: an endpoint uses the engine of its filter
use retryproof::idempotent;

#[idempotent(http, engine = ENGINE)]
async fn pay(body: String) -> String {
    body
}

fn main() {}
