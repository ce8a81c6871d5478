// SPDX-License-Identifier: MIT OR Apache-2.0
// CMP-7: the compiler refuses a pool that cannot open transactions
use retryproof::{IdempotencyEngine, MemoryStore};

struct Pool;

fn main() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let _ = engine.joined(Pool);
}
