// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN-4: a call has only one lease
use retryproof::{IdempotencyEngine, Lease, Rejected, idempotent};

#[idempotent(key = id, engine = engine)]
async fn pay(engine: &IdempotencyEngine, id: u64, #[lease] a: &Lease, #[lease] b: &Lease) -> Result<u64, Rejected> {
    let _ = (engine, a, b);
    Ok(id)
}

fn main() {}
