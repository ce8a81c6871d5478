// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the message suggests the layer instead
use retryproof::idempotent;

#[idempotent(http)]
async fn pay(body: impl Into<String>) -> String {
    body.into()
}

fn main() {}
