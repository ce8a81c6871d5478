// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`WebConfig`]: the settings of the HTTP filter.

use std::time::Duration;

use super::{OutOfBounds, PAUSE_BOUNDS, refused, within};
use crate::error::Result;

/// `web.*`: the HTTP filter's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebConfig {
    /// `web.required`: whether the filter refuses requests without a key. The setting applies to
    /// the whole API (HTTP-3). Default: true.
    pub required: bool,
    /// `web.max-body-bytes`: the largest request body that is buffered (HTTP-4). Default: 1 MiB.
    pub max_body_bytes: usize,
    /// `web.max-response-bytes`: the largest response that is stored (HTTP-13). Default: 8 MiB.
    pub max_response_bytes: usize,
    /// `web.collect-timeout`: how long the filter collects a response body before it sends the
    /// response. A slower response is streamed and cannot be replayed (HTTP-7). Default: 5 s.
    pub collect_timeout: Duration,
    /// `web.key-header`: the header that carries the key. Default: `Idempotency-Key`.
    pub key_header: String,
    /// `web.in-flight-status`: the status of the response to a duplicate while its key is in flight
    /// (HTTP-10). Any 4xx or 5xx is valid. Default: 409.
    pub in_flight_status: u16,
    /// `web.publish-window`: whether a recorded answer carries the field `Idempotency-Expires`,
    /// which says until when its key is remembered (HTTP-21). Default: false.
    pub publish_window: bool,
    /// `web.fingerprint`: what the fingerprint of a request covers (FP-3).
    pub fingerprint: FingerprintMode,
}

/// The parts of a request that its fingerprint covers (FP-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FingerprintMode {
    /// Method, path and query, and body.
    #[default]
    Request,
    /// Only the body, whatever the method and the path.
    Body,
    /// Like `Request`, but an I-JSON body is first converted to its canonical form (RFC 8785).
    Json,
}

impl Default for WebConfig {
    fn default() -> Self {
        Self {
            required: true,
            max_body_bytes: 1 << 20,
            max_response_bytes: 8 << 20,
            collect_timeout: Duration::from_secs(5),
            key_header: "Idempotency-Key".to_owned(),
            in_flight_status: 409,
            publish_window: false,
            fingerprint: FingerprintMode::default(),
        }
    }
}

impl WebConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config). The message names the first setting that is
    /// out of range, with its value.
    pub fn validate(&self) -> Result<()> {
        self.check().map_err(OutOfBounds::into_error)
    }

    pub(super) fn check(&self) -> Result<(), OutOfBounds> {
        if !(400..=599).contains(&self.in_flight_status) {
            return Err(refused(
                "web.in-flight-status",
                self.in_flight_status,
                "a status from 400 to 599",
            ));
        }
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if self.key_header.is_empty() || !self.key_header.bytes().all(token) {
            return Err(refused(
                "web.key-header",
                format!("{:?}", self.key_header),
                "a valid HTTP field name",
            ));
        }
        within("web.collect-timeout", self.collect_timeout, &PAUSE_BOUNDS)
    }
}
