// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the message suggests the layer instead
use retryproof::idempotent;

#[idempotent(http)]
async fn pay<T: Into<String>>(body: axum::Json<T>) -> String {
    body.0.into()
}

fn main() {}
