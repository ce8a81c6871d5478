// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;
pub(crate) async fn consume(ctx: &Context, tenant: &str, order: Order) -> Result<Receipt, Failure> {
    let call =
        ::retryproof::__private::Keyed::function(
            const {
                ::retryproof::__private::default_scope(::core::concat!(
                    ::core::module_path!(),
                    "::",
                    "consume"
                ))
            },
            &(format!("{tenant}/{}", order.id)),
            || (),
        )
        .completion(::retryproof::__private::CompletionFailurePolicy::LogAndReturn);
    let engine =
        ::retryproof::__private::ProvidesEngine::<::retryproof::__private::IdempotencyEngine>::engine(
            &(ctx.engine),
        );
    call.run::<Result<Receipt, Failure>, _, _>(engine, async move || -> Result<Receipt, Failure> {
        ctx.ledger.charge(&order, Some(tenant.len()))
    })
    .await
}
