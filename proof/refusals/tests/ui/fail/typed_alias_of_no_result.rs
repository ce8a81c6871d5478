// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: a function that cannot report in flight
use retryproof::{IdempotencyEngine, idempotent};

type Answer = Option<u8>;

#[idempotent(key = id, engine = engine)]
async fn consume(engine: &IdempotencyEngine, id: u8) -> Answer {
    Some(id)
}

fn main() {}
