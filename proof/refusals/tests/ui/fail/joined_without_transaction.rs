// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, CMP-7: a joined call needs an argument with `#[tx]`
use retryproof::{IdempotencyEngine, idempotent};

struct Orders {
    engine: IdempotencyEngine,
}

impl AsRef<IdempotencyEngine> for Orders {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.engine
    }
}

impl Orders {
    #[idempotent(key = id, completion = "joined")]
    async fn on(&self, id: &str) -> Result<(), retryproof::Rejected> {
        let _ = id;
        Ok(())
    }
}

fn main() {}
