// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the filter computes the fingerprint from the request
use retryproof::idempotent;

#[idempotent(http, fingerprint = body)]
async fn pay(body: String) -> String {
    body
}

fn main() {}
