// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: this codec cannot encode this type of value
use retryproof::{BytesCodec, IdempotencyEngine, Rejected, idempotent};

#[idempotent(key = id, engine = engine, codec = BytesCodec)]
async fn consume(engine: &IdempotencyEngine, id: u8) -> Result<u8, Rejected> {
    Ok(id)
}

fn main() {}
