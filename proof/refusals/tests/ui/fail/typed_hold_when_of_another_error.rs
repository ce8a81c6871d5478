// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN-4: `hold_when` takes the function's own error type
use retryproof::{IdempotencyEngine, Rejected, idempotent};

struct Other;

impl Other {
    fn is_unknown(&self) -> bool {
        true
    }
}

#[idempotent(key = id, engine = engine, hold_when = Other::is_unknown)]
async fn pay(engine: &IdempotencyEngine, id: u64) -> Result<u64, Rejected> {
    Ok(id)
}

fn main() {}
