// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, ANN-5: the error type cannot report that another call is in flight
use retryproof::{IdempotencyEngine, idempotent};

struct Failure;

#[idempotent(key = id, engine = engine)]
async fn consume(engine: &IdempotencyEngine, id: u8) -> Result<u8, Failure> {
    Ok(id)
}

fn main() {}
