// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2
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
    #[idempotent(http)]
    async fn on(&self, id: String) -> String {
        id
    }
}

fn main() {}
