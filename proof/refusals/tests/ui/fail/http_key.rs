// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the client sends the key
use retryproof::idempotent;

#[idempotent(http, key = body)]
async fn pay(body: String) -> String {
    body
}

fn main() {}
