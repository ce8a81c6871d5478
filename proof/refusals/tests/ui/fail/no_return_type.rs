// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the return type cannot report that another call is in flight
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
    #[idempotent(key = id)]
    async fn on(&self, id: &str) {
        let _ = id;
    }
}

fn main() {}
