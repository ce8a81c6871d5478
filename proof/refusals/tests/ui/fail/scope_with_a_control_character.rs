// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, ID-3
use retryproof::idempotent;

#[idempotent(http, scope = "pay\nments")]
async fn pay(body: String) -> String {
    body
}

fn main() {}
