// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3: a missing engine is a compile error with a message of ours
use retryproof::{Rejected, idempotent};

struct Orders;

impl Orders {
    #[idempotent(key = id)]
    async fn on(&self, id: u8) -> Result<u8, Rejected> {
        Ok(id)
    }
}

fn main() {}
