// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, HTTP-15: a call is guarded only once
use retryproof::idempotent;

#[idempotent(http, scope = "first")]
#[retryproof::idempotent(http, scope = "second")]
async fn pay(body: String) -> String {
    body
}

fn main() {}
