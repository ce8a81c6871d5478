// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: no codec can encode this type of value
use retryproof::{IdempotencyEngine, Rejected, idempotent};

struct Receipt;

#[idempotent(key = id, engine = engine)]
async fn consume(engine: &IdempotencyEngine, id: u8) -> Result<Receipt, Rejected> {
    let _ = id;
    Ok(Receipt)
}

fn main() {}
