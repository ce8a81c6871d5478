// SPDX-License-Identifier: MIT OR Apache-2.0
// ID-3: a `String` cannot be a scope, so a swapped scope and key do not compile
use retryproof::IdempotencyContext;

fn main() {
    let key = std::env::args().collect::<String>();
    let _ = IdempotencyContext::builder(key, "payments");
}
