// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;

#[idempotent(key = order.id, scope = "import", engine = engine, lease = "PT1M")]
pub(crate) fn import<T: Shelf>(
    engine: &blocking::Engine,
    shelf: &T,
    order: Order,
) -> Result<Receipt, Failure> {
    shelf.put(order)
}
