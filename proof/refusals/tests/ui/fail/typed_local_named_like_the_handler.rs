// SPDX-License-Identifier: MIT OR Apache-2.0
// The endpoint is a unit struct, so its name is a constant in patterns.
use retryproof::idempotent;

#[idempotent(http)]
async fn pay(body: String) -> String {
    body
}

fn main() {
    let pay = 5;
    drop(pay);
}
