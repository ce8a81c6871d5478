// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, ANN-3: a function has to name its engine, because there is no global engine
use retryproof::idempotent;

#[idempotent(key = id)]
async fn consume(id: u8) -> Result<u8, retryproof::Rejected> {
    Ok(id)
}

fn main() {}
