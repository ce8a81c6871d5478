// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: one compilation reports all mistakes, each at its own place
use retryproof::idempotent;

#[idempotent(http, key = body, ttl = "24h", lease = "PT0S", colour = 1, scope = "")]
fn pay<T>(body: String) -> String {
    body
}

fn main() {}
