// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;
pub(crate) async fn consume(ctx: &Context, tenant: &str, order: Order) -> Result<Receipt, Failure> {
    let retryproof_call = ::retryproof::__private::AnnotatedCall::function(
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
    .fingerprint(&(order.id))
    .subject(&(tenant))
    .completion(::retryproof::__private::CompletionFailurePolicy::LogAndReturn);
    let retryproof_engine = ::retryproof::__private::ProvidesEngine::<
        ::retryproof::__private::IdempotencyEngine,
    >::engine(&(ctx.engine));
    retryproof_call
        .run::<Result<Receipt, Failure>, _, _, _>(
            retryproof_engine,
            |_| false,
            async move |_| -> Result<Receipt, Failure> {
                ctx.ledger.charge(&order, Some(tenant.len()))
            },
        )
        .await
}
