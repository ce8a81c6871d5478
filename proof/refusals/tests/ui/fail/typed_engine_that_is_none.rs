// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3: the message says that this type does not provide an engine
use retryproof::{Rejected, idempotent};

#[idempotent(key = id, engine = name)]
async fn consume(name: String, id: u8) -> Result<u8, Rejected> {
    let _ = name;
    Ok(id)
}

fn main() {}
