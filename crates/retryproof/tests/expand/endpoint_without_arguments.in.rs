// SPDX-License-Identifier: MIT OR Apache-2.0
#[idempotent(http)]
pub(crate) async fn tick() -> &'static str {
    "tock"
}
