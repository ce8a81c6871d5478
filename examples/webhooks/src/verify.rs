// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer before the guard: who sent it, over which bytes, and under which id. A signature
//! covers the raw body, and a guard reads its key from a header. So this layer is outside the guard
//! and does both: it collects the body, checks it, reads the event's id *from what was signed*, and
//! sets it as the key, in the field by which the guard keys. What it refuses never reaches a key,
//! so it leaves no record (HTTP-16, ANN-6).

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use crate::signature::{self, Distrust, Secret};

/// Events are small.
const LARGEST_BODY: usize = 256 << 10;
/// The longest id; that of a key (HTTP-2).
const LONGEST_ID: usize = 255;

/// Seconds since 1970.
type Clock = fn() -> u64;

/// Whose deliveries are taken.
#[derive(Debug, Clone)]
pub struct Trusted {
    secrets: Arc<[Secret]>,
    now: Clock,
}

impl Trusted {
    /// Those who sign with one of these, by the host's clock.
    pub fn with(secrets: impl IntoIterator<Item = Secret>) -> Self {
        Self {
            secrets: secrets.into_iter().collect(),
            now: || retryproof::clock::wall_clock_micros() / 1_000_000,
        }
    }

    /// By another clock, for tests.
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

/// The part of an event that every kind of event has.
#[derive(Deserialize)]
struct Envelope {
    id: String,
}

/// `axum::middleware::from_fn_with_state((trusted, key_header), verified)`: lets through what was
/// signed, with its event's id in that field.
///
/// It has to be the field that the filter reads, `web.key-header`: any other is not signed, and
/// anyone who overheard a delivery could change it.
pub async fn verified(
    State((trusted, key_header)): State<(Trusted, HeaderName)>,
    request: Request,
    next: Next,
) -> Response {
    let (mut head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, LARGEST_BODY).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "too large, or not whole\n").into_response();
    };
    if let Err(why) = trusted.check(&head.headers, &body) {
        tracing::warn!(%why, "a delivery was refused");
        // The reason would help only a forger.
        return (StatusCode::UNAUTHORIZED, "not signed\n").into_response();
    }
    let Some(key) = serde_json::from_slice(&body).ok().and_then(|event: Envelope| key(&event.id))
    else {
        return (StatusCode::BAD_REQUEST, "an event has an id of 1 to 255 printable characters\n")
            .into_response();
    };
    // In the place of all lines that came with the delivery: they were not signed.
    head.headers.insert(key_header, key);
    next.run(Request::from_parts(head, Body::from(body))).await
}

/// The quoted form, which has room for spaces and commas (HTTP-2).
fn key(id: &str) -> Option<HeaderValue> {
    let is_printable = id.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    if !is_printable || id.trim().is_empty() || id.len() > LONGEST_ID {
        return None;
    }
    HeaderValue::from_str(&format!("\"{}\"", id.replace('\\', "\\\\").replace('"', "\\\""))).ok()
}
