// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;
impl Orders {
    pub(crate) async fn on_paid(
        &self,
        till: &JoinedEngine<SqliteTx>,
        event: &Event,
    ) -> Result<usize, Failure> {
        let retryproof_call =
            ::retryproof::__private::AnnotatedCall::new("orders.paid", &(event.id));
        let retryproof_engine = ::retryproof::__private::ProvidesEngine::<
            ::retryproof::__private::JoinedEngine<SqliteTx>,
        >::engine(&(till));
        retryproof_call
            .run_joined::<Result<usize, Failure>, SqliteTx, _, _>(
                retryproof_engine,
                |_| false,
                async move |_, tx: &mut SqliteTx| -> Result<usize, Failure> {
                    let _: &SqliteTx = tx;
                    Ok(self.ledger.write(event.id.clone()))
                },
            )
            .await
    }
}
pub(crate) fn book(
    till: &blocking::JoinedEngine<SqliteTx>,
    ledger: &Ledger,
    order: Order,
) -> Result<Receipt, Failure> {
    ::retryproof::__private::blocking! {
        let retryproof_call = ::retryproof::__private::AnnotatedCall::function(const {
            ::retryproof::__private::default_scope(::core::concat!(::core::module_path!(), "::", "book"))
        }, &(order.id), || (),);
        let retryproof_engine = ::retryproof::__private::ProvidesEngine::<::retryproof::__private::BlockingJoinedEngine<SqliteTx>>::engine(&(till));
        retryproof_call.run_blocking_joined::<Result<Receipt, Failure>, SqliteTx, _, _>(retryproof_engine, |_| false, move | _, _tx: &mut SqliteTx | -> Result<Receipt, Failure> {
            ledger.put(order)
        })
    }
}
