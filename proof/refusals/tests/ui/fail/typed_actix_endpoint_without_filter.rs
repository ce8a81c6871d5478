// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-3: in actix-web, an endpoint cannot be mounted without its filter
use actix_web::web;
use retryproof::actix::idempotent;

#[idempotent(http)]
async fn pay(body: String) -> String {
    body
}

fn main() {
    let _ = web::post().to(pay);
}
