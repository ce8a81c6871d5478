// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-2: the message suggests the middleware instead
use retryproof::actix::idempotent;

#[idempotent(http, engine = filter)]
async fn pay<T: Into<String>>(body: actix_web::web::Json<T>) -> String {
    body.0.into()
}

fn main() {}
