// SPDX-License-Identifier: MIT OR Apache-2.0
//! A redirect policy that keeps keys within their origin.

use reqwest::redirect::Policy;

/// Follows redirects as reqwest does by default, up to ten, but only within the origin (scheme,
/// host and port) that the request was sent to. A redirect to another origin is returned as the
/// call's answer, with its status and its `Location`. By default, reqwest follows such a redirect
/// and removes `Authorization` and cookies, but not `Idempotency-Key`. The other origin then
/// receives the key and can use it to request the call's answer (ID-4). reqwest follows redirects
/// below all middleware, so build the client with this policy. The middleware logs a warning if an
/// answer to a request with a key comes from another origin.
///
/// ```
/// use retryproof_client::{IdempotencyMiddleware, same_origin_redirects};
/// use retryproof_client::{reqwest, reqwest_middleware::ClientBuilder};
///
/// let client = reqwest::Client::builder().redirect(same_origin_redirects()).build()?;
/// let payments = ClientBuilder::new(client).with(IdempotencyMiddleware::default()).build();
/// # drop(payments);
/// # Ok::<(), reqwest::Error>(())
/// ```
#[must_use]
pub fn same_origin_redirects() -> Policy {
    let limited = Policy::default();
    Policy::custom(move |attempt| {
        let first = attempt.previous().first();
        if first.is_some_and(|first| first.origin() == attempt.url().origin()) {
            limited.redirect(attempt)
        } else {
            attempt.stop()
        }
    })
}
