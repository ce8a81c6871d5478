// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;

impl Orders {
    #[idempotent(key = event.id, codec = BytesCodec, completion = "propagate")]
    pub(crate) async fn render(self: Arc<Self>, mut event: Event) -> Result<Vec<u8>, Failure> {
        event.id.push('!');
        self.ledger.note(&event).await?;
        Ok(event.id.into_bytes())
    }
}
