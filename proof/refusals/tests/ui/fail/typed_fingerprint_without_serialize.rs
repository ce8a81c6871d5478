// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-1: the fingerprint is of what the value serializes to, and type-checked where it stands
use retryproof::{IdempotencyEngine, Rejected, idempotent};

struct Order {
    id: u64,
}

#[idempotent(key = order.id, fingerprint = order, engine = engine)]
async fn pay(engine: &IdempotencyEngine, order: &Order) -> Result<u64, Rejected> {
    Ok(order.id)
}

fn main() {}
