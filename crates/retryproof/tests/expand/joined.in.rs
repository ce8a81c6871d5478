// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;

impl Orders {
    #[idempotent(key = event.id, scope = "orders.paid", completion = "joined", engine = till)]
    pub(crate) async fn on_paid(
        &self,
        till: &JoinedEngine<SqliteTx>,
        event: &Event,
        #[tx] tx: &mut SqliteTx,
    ) -> Result<usize, Failure> {
        let _: &SqliteTx = tx;
        Ok(self.ledger.write(event.id.clone()))
    }
}

#[idempotent(key = order.id, engine = till, completion = "joined")]
pub(crate) fn book(
    till: &blocking::JoinedEngine<SqliteTx>,
    ledger: &Ledger,
    #[tx] _tx: &mut SqliteTx,
    order: Order,
) -> Result<Receipt, Failure> {
    ledger.put(order)
}
