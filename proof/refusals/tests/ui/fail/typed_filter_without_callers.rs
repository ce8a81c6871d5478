// SPDX-License-Identifier: MIT OR Apache-2.0
// HTTP-16: a filter cannot be built before its callers are configured
use retryproof::http::IdempotencyFilter;
use retryproof::{IdempotencyEngine, MemoryStore};

fn main() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let _ = IdempotencyFilter::builder(engine).build();
}
