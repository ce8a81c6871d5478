// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: with a hint at the middleware
use retryproof::actix::idempotent;

#[idempotent(http, engine = filter)]
async fn pay<T: Into<String>>(body: actix_web::web::Json<T>) -> String {
    body.0.into()
}

fn main() {}
