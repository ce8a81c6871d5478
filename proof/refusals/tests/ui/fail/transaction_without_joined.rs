// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, CMP-7: `#[tx]` needs `completion = "joined"`
use retryproof::{JoinedEngine, Rejected, idempotent};

struct Tx;

#[idempotent(key = id, engine = engine)]
async fn on(engine: &JoinedEngine<Tx>, id: &str, #[tx] _tx: &mut Tx) -> Result<(), Rejected> {
    let _ = (engine, id);
    Ok(())
}

fn main() {}
