// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2
use retryproof::idempotent;

#[idempotent(http)]
async fn pay(body: &str) -> String {
    body.to_owned()
}

fn main() {}
