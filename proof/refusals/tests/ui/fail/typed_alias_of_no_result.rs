// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the return type cannot report that another call is in flight
use retryproof::{IdempotencyEngine, idempotent};

type Answer = Option<u8>;

#[idempotent(key = id, engine = engine)]
async fn consume(engine: &IdempotencyEngine, id: u8) -> Answer {
    Some(id)
}

fn main() {}
