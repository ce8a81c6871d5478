// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer outside the guard. It collects the raw body, checks the body's signature, and reads
//! the event's id *from the signed body*. It then sets the id as the key, in the header from which
//! the guard reads its key. A refused delivery does not reach the guard, so it leaves no record
//! (HTTP-16, ANN-6).

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use crate::signature::{self, Distrust, Secret};

/// The largest body in bytes. Events are small.
const LARGEST_BODY: usize = 256 << 10;
/// The longest id in bytes. A key has the same limit (HTTP-2).
const LONGEST_ID: usize = 255;

/// Returns the time in seconds since 1970.
type Clock = fn() -> u64;

/// The senders whose deliveries are accepted.
#[derive(Debug, Clone)]
pub struct Trusted {
    secrets: Arc<[Secret]>,
    now: Clock,
}

impl Trusted {
    /// Accepts senders that sign with one of these secrets. Uses the host's clock.
    pub fn with(secrets: impl IntoIterator<Item = Secret>) -> Self {
        Self {
            secrets: secrets.into_iter().collect(),
            now: || retryproof::clock::wall_clock_micros() / 1_000_000,
        }
    }

    /// Uses another clock, for tests.
    #[must_use]
    pub fn by(mut self, now: Clock) -> Self {
        self.now = now;
        self
    }

    fn check(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), Distrust> {
        let mut lines = headers.get_all("webhook-signature").iter();
        let (Some(line), None) = (lines.next(), lines.next()) else {
            return Err(Distrust::Malformed);
        };
        let line = line.to_str().map_err(|_| Distrust::Malformed)?;
        signature::check(&self.secrets, line, body, (self.now)())
    }
}

/// The part that all kinds of events have.
#[derive(Deserialize)]
struct Envelope {
    id: String,
}

/// `axum::middleware::from_fn_with_state((trusted, key_header), verified)`: passes signed
/// deliveries on, with the event's id in the header `key_header`.
///
/// `key_header` must be the header that the filter reads, `web.key-header`. If the filter read a
/// different header, anyone who has intercepted a delivery could change its key, because headers
/// are not signed.
pub async fn verified(
    State((trusted, key_header)): State<(Trusted, HeaderName)>,
    request: Request,
    next: Next,
) -> Response {
    let (mut head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, LARGEST_BODY).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "the event is too large or incomplete\n")
            .into_response();
    };
    if let Err(why) = trusted.check(&head.headers, &body) {
        tracing::warn!(%why, "a delivery was refused");
        // Do not send the reason, because it would help only a forger.
        return (StatusCode::UNAUTHORIZED, "the signature is missing or invalid\n").into_response();
    }
    let Some(key) = serde_json::from_slice(&body).ok().and_then(|event: Envelope| key(&event.id))
    else {
        return (
            StatusCode::BAD_REQUEST,
            "the event must have an id of 1 to 255 printable characters\n",
        )
            .into_response();
    };
    // Replace all headers of this name, because the delivery's own headers are not signed.
    head.headers.insert(key_header, key);
    next.run(Request::from_parts(head, Body::from(body))).await
}

/// Returns the key in its quoted form, which can contain spaces and commas (HTTP-2).
fn key(id: &str) -> Option<HeaderValue> {
    let is_printable = id.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    if !is_printable || id.trim().is_empty() || id.len() > LONGEST_ID {
        return None;
    }
    HeaderValue::from_str(&format!("\"{}\"", id.replace('\\', "\\\\").replace('"', "\\\""))).ok()
}
