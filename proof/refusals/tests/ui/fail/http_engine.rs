// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the filter brings its engine
use retryproof::idempotent;

#[idempotent(http, engine = ENGINE)]
async fn pay(body: String) -> String {
    body
}

fn main() {}
