// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2
use retryproof::idempotent;

#[idempotent(ttl = "PT1H", http)]
async fn pay(body: String) -> String {
    body
}

fn main() {}
