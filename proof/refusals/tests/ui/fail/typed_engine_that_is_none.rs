// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3: a missing engine is a compile error with a message of ours
use retryproof::{Rejected, idempotent};

#[idempotent(key = id, engine = name)]
async fn consume(name: String, id: u8) -> Result<u8, Rejected> {
    let _ = name;
    Ok(id)
}

fn main() {}
