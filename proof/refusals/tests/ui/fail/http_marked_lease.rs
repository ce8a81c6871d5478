// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: an endpoint gets its lease from an extractor, without `#[lease]`
use retryproof::idempotent;

#[idempotent(http)]
async fn pay(#[lease] lease: retryproof::http::axum::Lease) -> String {
    format!("{lease:?}")
}

fn main() {}
