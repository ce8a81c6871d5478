// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3: the error points at the return type, not at the attribute
use retryproof::idempotent;

struct Receipt;

#[idempotent(http)]
async fn pay(body: String) -> Receipt {
    drop(body);
    Receipt
}

fn main() {}
