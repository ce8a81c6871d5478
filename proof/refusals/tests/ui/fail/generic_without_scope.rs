// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-1: all instantiations have the same path, so they would share their records
use std::fmt::Display;

use retryproof::{IdempotencyEngine, Rejected, idempotent};

#[idempotent(key = id, engine = engine)]
async fn consume<'a, E>(engine: &'a IdempotencyEngine, id: u64, event: E) -> Result<(), Rejected> {
    let _ = (engine, id, event);
    Ok(())
}

struct Orders {
    engine: IdempotencyEngine,
}

impl AsRef<IdempotencyEngine> for Orders {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.engine
    }
}

impl Orders {
    #[idempotent(key = id)]
    async fn shown(&self, id: impl Display) -> Result<(), Rejected> {
        let _ = id;
        Ok(())
    }

    #[idempotent(key = id)]
    async fn sized<const N: usize>(&self, id: u64, lines: [u64; N]) -> Result<(), Rejected> {
        let _ = (id, lines);
        Ok(())
    }
}

fn main() {}
