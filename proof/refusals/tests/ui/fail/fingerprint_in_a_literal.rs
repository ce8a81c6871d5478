// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: `fingerprint` takes an expression, not a string that contains one
use retryproof::{IdempotencyEngine, Rejected, idempotent};

#[idempotent(key = id, fingerprint = "amount", engine = engine)]
async fn pay(engine: &IdempotencyEngine, id: u64, amount: u64) -> Result<u64, Rejected> {
    let _ = engine;
    Ok(id + amount)
}

fn main() {}
