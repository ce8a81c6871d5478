// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: each at its own place, in one run
use retryproof::idempotent;

#[idempotent(http, key = body, ttl = "24h", lease = "PT0S", colour = 1, scope = "")]
fn pay<T>(body: String) -> String {
    body
}

fn main() {}
