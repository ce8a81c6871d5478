// SPDX-License-Identifier: MIT OR Apache-2.0
// CMP-7: what opens the transactions is known to the compiler
use retryproof::{IdempotencyEngine, MemoryStore};

struct Pool;

fn main() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let _ = engine.joined(Pool);
}
