// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, CMP-7: an endpoint gets its transaction from an extractor, without `#[tx]`
use retryproof::idempotent;

struct Tx;

#[idempotent(http)]
async fn pay(#[tx] _tx: Tx, body: String) -> String {
    body
}

fn main() {}
