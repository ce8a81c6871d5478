// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;

impl Orders {
    #[idempotent(key = event.id, scope = "orders.charged", hold_when = Failure::is_unknown)]
    pub(crate) async fn on_charge(&self, event: &Event, #[lease] lease: &Lease) -> Result<String, Failure> {
        let step = lease.downstream_key("charge");
        self.ledger.note(event).await?;
        Ok(step)
    }
}

#[idempotent(key = order.id, scope = "books", completion = "joined", engine = till)]
pub(crate) fn enter(
    till: &blocking::JoinedEngine<SqliteTx>,
    order: Order,
    #[lease] lease: Lease,
    #[tx] tx: &mut SqliteTx,
) -> Result<String, Failure> {
    let _ = (order, tx.last_insert_rowid());
    Ok(lease.downstream_key("enter"))
}
