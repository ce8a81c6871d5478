// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, CMP-7: the record is written in one transaction
use retryproof::{JoinedEngine, Rejected, idempotent};

struct Tx;

#[idempotent(key = id, engine = engine, completion = "joined")]
async fn on(engine: &JoinedEngine<Tx>, id: &str, #[tx] _one: &mut Tx, #[tx] _other: &mut Tx) -> Result<(), Rejected> {
    let _ = (engine, id);
    Ok(())
}

fn main() {}
