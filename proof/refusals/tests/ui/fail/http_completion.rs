// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: for endpoints, the setting `completion-failure-policy` takes its place
use retryproof::idempotent;

#[idempotent(http, completion = "propagate")]
async fn pay(body: String) -> String {
    body
}

fn main() {}
