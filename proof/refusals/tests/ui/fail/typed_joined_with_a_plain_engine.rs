// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3, CMP-7: a joined call needs a `JoinedEngine`, which opens transactions
use retryproof::{IdempotencyEngine, Rejected, idempotent};

struct Tx;

#[idempotent(key = id, engine = engine, completion = "joined")]
async fn on(engine: &IdempotencyEngine, id: &str, #[tx] _tx: &mut Tx) -> Result<(), Rejected> {
    let _ = id;
    Ok(())
}

fn main() {}
