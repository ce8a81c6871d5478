// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;
impl Orders {
    pub(crate) async fn on_created(&self, event: &Event) -> Result<(), Failure> {
        let retryproof_call =
            ::retryproof::__private::AnnotatedCall::new("orders.created", &(event.id))
                .ttl(::core::time::Duration::new(604800u64, 0u32))
                .wait_timeout(::core::time::Duration::new(0u64, 0u32));
        let retryproof_engine = <Self as ::retryproof::__private::ProvidesEngine<
            ::retryproof::__private::IdempotencyEngine,
        >>::engine(&self);
        retryproof_call
            .run::<Result<(), Failure>, _, _, _>(
                retryproof_engine,
                |_| false,
                async move |_| -> Result<(), Failure> { self.ledger.note(event).await },
            )
            .await
    }
}
