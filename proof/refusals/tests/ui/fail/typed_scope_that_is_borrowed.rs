// SPDX-License-Identifier: MIT OR Apache-2.0
// ID-3: a scope is code, not data
use retryproof::IdempotencyContext;

fn main() {
    let key = std::env::args().collect::<String>();
    let _ = IdempotencyContext::builder(key.as_str(), "payments");
}
