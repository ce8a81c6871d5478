// SPDX-License-Identifier: MIT OR Apache-2.0
// An endpoint is a unit struct, so its name in a pattern is a constant, not a new variable.
use retryproof::idempotent;

#[idempotent(http)]
async fn pay(body: String) -> String {
    body
}

fn main() {
    let pay = 5;
    drop(pay);
}
