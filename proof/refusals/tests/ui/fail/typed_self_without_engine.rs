// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3: the message says that `Self` does not provide an engine
use retryproof::{Rejected, idempotent};

struct Orders;

impl Orders {
    #[idempotent(key = id)]
    async fn on(&self, id: u8) -> Result<u8, Rejected> {
        Ok(id)
    }
}

fn main() {}
