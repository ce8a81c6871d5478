// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, CTX-2
use retryproof::idempotent;

#[idempotent(http, lease = "PT25H")]
async fn pay(body: String) -> String {
    body
}

fn main() {}
