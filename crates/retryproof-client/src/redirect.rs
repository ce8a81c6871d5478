// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which redirects a client may follow with a key in its requests.

use reqwest::redirect::Policy;

/// Follows redirects as reqwest does by default, up to ten, but only within the origin (scheme,
/// host and port) that the request was made for. A redirect to another origin is the answer of the
/// call, with its status and its `Location`.
///
/// reqwest takes `Authorization` and cookies out of a request that is redirected to another origin,
/// and knows nothing of `Idempotency-Key`: the other side would learn the key, with which it can
/// ask for the call's answer (ID-4). Redirects are followed below all middleware, so the client has
/// to be built with this policy. The middleware logs a warning where a key has gone to another
/// origin.
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
