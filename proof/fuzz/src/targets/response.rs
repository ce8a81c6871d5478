// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stored responses (HTTP-8) and the envelope around every result (CMP-8).

use bytes::Bytes;
use retryproof_core::{Opened, Payload, StoredResult, Tombstone};
use retryproof_http::StoredResponse;

use super::{about, kind};

pub(super) fn run(input: &[u8]) -> u64 {
    let decoded = match StoredResponse::decode(Bytes::copy_from_slice(input)) {
        Err(error) => return kind(error.to_string()),
        Ok(decoded) => decoded,
    };
    assert!((100..=999).contains(&decoded.status()), "status {}", decoded.status());
    let headers: Vec<(&str, &[u8])> = decoded.headers().collect();
    let trailers = decoded.trailers().count();
    let body = decoded.body();
    for (name, _) in headers.iter().copied().chain(decoded.trailers()) {
        assert!(!name.is_empty() && !name.bytes().any(|byte| byte.is_ascii_uppercase()), "{name}");
    }
    let shown = format!("{decoded:?}");
    assert!(shown.len() < 500, "the text of a response grows with it");
    if !decoded.is_tombstone() && trailers == 0 && (200..600).contains(&decoded.status()) {
        let again = StoredResponse::encode(decoded.status(), &headers, &body);
        let again = again.expect("what was read should be written");
        assert_eq!(again.body(), input, "the same response has two forms");
    }
    kind((decoded.is_tombstone(), about(headers.len()), about(trailers), about(body.len())))
}

pub(super) fn envelope(input: &[u8]) -> u64 {
    let stored = StoredResult::new(input.to_vec(), None);
    let value = match stored.open(None) {
        Err(error) => {
            let text = error.to_string();
            assert!(text.len() < 600);
            return kind(text.get(..40).map(str::to_owned));
        }
        Ok(Opened::Mismatch) => panic!("a mismatch without fingerprints"),
        Ok(Opened::Value(value)) => {
            let again = Payload::new(value.codec(), value.schema(), value.body()).into_envelope();
            same_but_flags(&again, input);
            value
        }
        Ok(Opened::Tombstone(tombstone)) => {
            let detail = tombstone.detail().clone();
            let again = Tombstone::with_detail(detail.codec(), detail.schema(), detail.body());
            same_but_flags(again.envelope(), input);
            detail
        }
    };
    assert_eq!(&value.envelope()[..], input);
    kind((about(value.body().len()), input.get(3).copied()))
}

/// Checks that two forms of a response differ only in flags that a reader may ignore.
fn same_but_flags(written: &[u8], input: &[u8]) {
    let without = |bytes: &[u8]| [&bytes[..3], &bytes[4..]].concat();
    assert_eq!(without(written), without(input));
    assert_eq!(written[3], input[3] & 0x0f, "flags");
}
