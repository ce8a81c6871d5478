// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2
use retryproof::idempotent;

trait Handles {
    #[idempotent(key = id)]
    async fn on(&self, id: u8) -> Result<(), retryproof::Rejected>;
}

fn main() {}
