// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;

/// Takes a payment.
#[idempotent(http, ttl = "PT24H", lease = "PT30S", wait_timeout = "PT2.5S", scope = "payments")]
#[cfg(not(miri))]
#[expect(clippy::unused_async, reason = "an attribute of the function, so it stays there")]
pub(crate) async fn pay(
    State(ledger): State<Ledger>,
    headers: HeaderMap,
    Json(order): Json<Order>,
) -> Result<Json<Receipt>, Failure> {
    let tenant = headers.get("x-tenant").map(|tenant| tenant.as_bytes().len());
    ledger.charge(&order, tenant).map(Json)
}
