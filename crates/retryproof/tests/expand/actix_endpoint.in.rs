// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;

/// Takes a payment.
#[idempotent(http, ttl = "PT24H", lease = "PT30S", wait_timeout = "PT2.5S", scope = "payments")]
#[cfg(not(miri))]
#[expect(clippy::unused_async, reason = "an attribute of the function, so it stays there")]
pub(crate) async fn pay(
    ledger: web::Data<Ledger>,
    web::Json(order): web::Json<Order>,
    request: HttpRequest,
) -> actix_web::Result<web::Json<Receipt>> {
    let tenant = request.headers().contains_key("x-tenant");
    Ok(web::Json(ledger.charge(&order, tenant)))
}

/// Nothing to extract.
#[idempotent(http)]
pub(crate) async fn ping() -> &'static str {
    "pong"
}
