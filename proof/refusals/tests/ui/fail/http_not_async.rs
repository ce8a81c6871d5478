// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2
use retryproof::idempotent;

#[idempotent(http)]
fn pay(body: String) -> String {
    body
}

fn main() {}
