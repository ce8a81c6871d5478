// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2, ID-3: the scope has to be a literal
use retryproof::idempotent;

const SCOPE: &str = "payments";

#[idempotent(http, scope = SCOPE)]
async fn pay(body: String) -> String {
    body
}

fn main() {}
