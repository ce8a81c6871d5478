// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations, fingerprints and values that the cases use.

use std::time::Duration;

use retryproof_core::{Blob, CodecId, Fingerprint, Opened, Payload, StoredResult};

/// A lease or a ttl that does not end during a case.
pub(crate) const LONG: Duration = Duration::from_secs(600);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) fn fingerprint(byte: u8) -> Fingerprint {
    Fingerprint::new(&[1, byte]).expect("the fingerprint should be valid")
}

/// Returns a value as the engine writes it.
pub(crate) fn envelope(body: &[u8]) -> Blob {
    Payload::new(CodecId::BYTES, 0, body).envelope().clone()
}

/// Returns the body of a stored value.
#[track_caller]
pub(crate) fn body(stored: &StoredResult) -> Vec<u8> {
    match stored.open(None) {
        Ok(Opened::Value(payload)) => payload.body().to_vec(),
        other => panic!("expected a value, got {other:?}"),
    }
}
