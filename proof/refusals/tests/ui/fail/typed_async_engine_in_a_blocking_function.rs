// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3: a blocking function needs a `blocking::Engine`
use retryproof::{IdempotencyEngine, Rejected, idempotent};

#[idempotent(key = id, engine = engine)]
fn consume(engine: &IdempotencyEngine, id: u8) -> Result<u8, Rejected> {
    Ok(id)
}

fn main() {}
