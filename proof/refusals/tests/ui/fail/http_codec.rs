// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the filter stores the response without a codec
use retryproof::idempotent;

#[idempotent(http, codec = retryproof::BytesCodec)]
async fn pay(body: String) -> String {
    body
}

fn main() {}
