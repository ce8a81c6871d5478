// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the filter's configuration decides
use retryproof::idempotent;

#[idempotent(http, completion = "propagate")]
async fn pay(body: String) -> String {
    body
}

fn main() {}
