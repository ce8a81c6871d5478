// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: `key` takes an expression, not a string that contains one
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
    #[idempotent(key = "id")]
    async fn on(&self, id: &str) -> Result<(), retryproof::Rejected> {
        let _ = id;
        Ok(())
    }
}

fn main() {}
