// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;
impl Orders {
    pub(crate) async fn render(self: Arc<Self>, mut event: Event) -> Result<Vec<u8>, Failure> {
        let retryproof_call = ::retryproof::__private::AnnotatedCall::method::<Self, _, _>(
            "render",
            &(event.id),
            || (),
        )
        .codec(BytesCodec)
        .completion(::retryproof::__private::CompletionFailurePolicy::Propagate);
        let retryproof_engine = <Self as ::retryproof::__private::ProvidesEngine<
            ::retryproof::__private::IdempotencyEngine,
        >>::engine(&self);
        retryproof_call
            .run::<Result<Vec<u8>, Failure>, _, _, _>(
                retryproof_engine,
                |_| false,
                async move |_| -> Result<Vec<u8>, Failure> {
                    event.id.push('!');
                    self.ledger.note(&event).await?;
                    Ok(event.id.into_bytes())
                },
            )
            .await
    }
}
