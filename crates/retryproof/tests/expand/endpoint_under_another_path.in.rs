// SPDX-License-Identifier: MIT OR Apache-2.0
#[idempotent(http, crate = super::prelude::framework::retryproof)]
pub(crate) async fn echo(body: String) -> String {
    body
}
