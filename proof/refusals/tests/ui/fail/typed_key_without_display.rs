// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-1: the key has to implement `Display`; the error points at the expression
use retryproof::{IdempotencyEngine, Rejected, idempotent};

struct Event {
    id: Vec<u8>,
}

#[idempotent(key = event.id, engine = engine)]
async fn consume(engine: &IdempotencyEngine, event: &Event) -> Result<usize, Rejected> {
    Ok(event.id.len())
}

#[idempotent(key = event.number, engine = engine)]
async fn import(engine: &IdempotencyEngine, event: &Event) -> Result<usize, Rejected> {
    Ok(event.id.len())
}

fn main() {}
