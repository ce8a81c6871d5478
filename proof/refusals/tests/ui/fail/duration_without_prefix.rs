// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, CTX-4
use retryproof::idempotent;

#[idempotent(http, ttl = "24h")]
async fn pay(body: String) -> String {
    body
}

fn main() {}
