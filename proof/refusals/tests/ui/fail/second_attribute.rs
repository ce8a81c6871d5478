// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, HTTP-15: one call is never guarded twice
use retryproof::idempotent;

#[idempotent(http, scope = "first")]
#[retryproof::idempotent(http, scope = "second")]
async fn pay(body: String) -> String {
    body
}

fn main() {}
