// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, CMP-7: the engine owns the transaction, and the function only borrows it
use retryproof::{JoinedEngine, Rejected, idempotent};

struct Tx;

#[idempotent(key = id, engine = engine, completion = "joined")]
async fn on(engine: &JoinedEngine<Tx>, id: &str, #[tx] _tx: Tx) -> Result<(), Rejected> {
    let _ = (engine, id);
    Ok(())
}

fn main() {}
