// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;

#[idempotent(key = format!("{tenant}/{}", order.id), fingerprint = order.id, subject = tenant, engine = ctx.engine, completion = "log-and-return")]
pub(crate) async fn consume(ctx: &Context, tenant: &str, order: Order) -> Result<Receipt, Failure> {
    ctx.ledger.charge(&order, Some(tenant.len()))
}
