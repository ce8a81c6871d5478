// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;

impl Orders {
    #[idempotent(key = event.id, scope = "orders.created", ttl = "P7D", wait_timeout = "PT0S")]
    pub(crate) async fn on_created(&self, event: &Event) -> Result<(), Failure> {
        self.ledger.note(event).await
    }
}
