// SPDX-License-Identifier: MIT OR Apache-2.0
// HTTP-16: the filter cannot be built until you configure how it tells callers apart
use retryproof::http::IdempotencyFilter;
use retryproof::{IdempotencyEngine, MemoryStore};

fn main() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let _ = IdempotencyFilter::builder(engine).build();
}
