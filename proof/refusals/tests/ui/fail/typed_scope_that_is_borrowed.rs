// SPDX-License-Identifier: MIT OR Apache-2.0
// ID-3: a scope is a `&'static str` or a `Scope`, never borrowed data
use retryproof::IdempotencyContext;

fn main() {
    let key = std::env::args().collect::<String>();
    let _ = IdempotencyContext::builder(key.as_str(), "payments");
}
