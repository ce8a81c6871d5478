// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-1: the value has to implement `Serialize`; the error points at the expression
use retryproof::{IdempotencyEngine, Rejected, idempotent};

struct Order {
    id: u64,
}

#[idempotent(key = order.id, fingerprint = order, engine = engine)]
async fn pay(engine: &IdempotencyEngine, order: &Order) -> Result<u64, Rejected> {
    Ok(order.id)
}

fn main() {}
