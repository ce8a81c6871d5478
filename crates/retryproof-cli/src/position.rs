// SPDX-License-Identifier: MIT OR Apache-2.0
//! Positions of a scan as arguments: the bytes of a cursor in base64 for URLs.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use retryproof::store::ScanCursor;

/// Returns a position as text. The text may contain a key (ID-4).
pub(crate) fn written(cursor: &ScanCursor) -> String {
    URL_SAFE_NO_PAD.encode(cursor.as_bytes())
}

/// Reads a position that [`written`] has returned.
pub(crate) fn parse(text: &str) -> Result<ScanCursor, String> {
    match URL_SAFE_NO_PAD.decode(text) {
        Ok(bytes) => Ok(ScanCursor::new(bytes)),
        Err(_) => Err("expected a position that `retryproof` has printed".to_owned()),
    }
}
