// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: a response, not the attribute, says whether the key is held
use retryproof::idempotent;

#[idempotent(http, hold_when = |error| error)]
async fn pay(body: String) -> String {
    body
}

fn main() {}
