// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3: the error points at the function, not at the attribute
use std::rc::Rc;

use retryproof::idempotent;

#[idempotent(http)]
async fn pay(body: String) -> String {
    let shared = Rc::new(body);
    std::future::ready(()).await;
    shared.to_string()
}

fn main() {}
