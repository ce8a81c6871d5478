// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2
use retryproof::idempotent;

#[idempotent(http, ttl = "PT1H", lease = "PT5S", ttl = "PT2H")]
async fn pay(body: String) -> String {
    body
}

fn main() {}
