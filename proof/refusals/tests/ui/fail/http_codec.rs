// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the response is stored without a codec
use retryproof::idempotent;

#[idempotent(http, codec = retryproof::BytesCodec)]
async fn pay(body: String) -> String {
    body
}

fn main() {}
