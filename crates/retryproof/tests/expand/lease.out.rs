// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;
impl Orders {
    pub(crate) async fn on_charge(&self, event: &Event) -> Result<String, Failure> {
        let retryproof_call =
            ::retryproof::__private::AnnotatedCall::new("orders.charged", &(event.id));
        let retryproof_engine = <Self as ::retryproof::__private::ProvidesEngine<
            ::retryproof::__private::IdempotencyEngine,
        >>::engine(&self);
        retryproof_call
            .run::<Result<String, Failure>, _, _, _>(
                retryproof_engine,
                Failure::is_unknown,
                async move |retryproof_lease| -> Result<String, Failure> {
                    let lease: &Lease = &retryproof_lease;
                    {
                        let step = lease.downstream_key("charge");
                        self.ledger.note(event).await?;
                        Ok(step)
                    }
                },
            )
            .await
    }
}
pub(crate) fn enter(
    till: &blocking::JoinedEngine<SqliteTx>,
    order: Order,
) -> Result<String, Failure> {
    ::retryproof::__private::blocking! {
        let retryproof_call = ::retryproof::__private::AnnotatedCall::new("books", &(order.id));
        let retryproof_engine = ::retryproof::__private::ProvidesEngine::<::retryproof::__private::BlockingJoinedEngine<SqliteTx>>::engine(&(till));
        retryproof_call.run_blocking_joined::<Result<String, Failure>, SqliteTx, _, _>(retryproof_engine, |_| false, move | retryproof_lease, tx: &mut SqliteTx | -> Result<String, Failure> {
            let lease: Lease = retryproof_lease;
            {
                let _ = (order, tx.last_insert_rowid());
                Ok(lease.downstream_key("enter"))
            }
        })
    }
}
