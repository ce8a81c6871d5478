// SPDX-License-Identifier: MIT OR Apache-2.0
//! Renders the filter's own responses as gRPC statuses. The three `google.rpc` messages are encoded
//! by hand, because they are small.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response};

use crate::protocol::problem::{Code, Problem};

const ANY: &str = "type.googleapis.com/google.rpc.";
const DOMAIN: &str = "retryproof";

/// Renders a problem as a gRPC status, in a response without a body.
/// [`GrpcLayer`](super::GrpcLayer) uses this function. Without the layer, pass this function to
/// [`FilterBuilder::rejections`](crate::FilterBuilder::rejections). The [module's page](super)
/// lists the codes.
#[must_use]
pub fn refusal(problem: &Problem) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(HeaderName::from_static("grpc-status"), status(problem).into());
    let mut add = |name: &'static str, text: String| {
        // Every text that is added here is ASCII, so the conversion cannot fail.
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    add("grpc-message", percent(&problem.detail));
    add("grpc-status-details-bin", base64(&details(problem)));
    if let Some(seconds) = problem.retry_after {
        add("grpc-retry-pushback-ms", (u64::from(seconds) * 1_000).to_string());
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn status(problem: &Problem) -> u16 {
    match problem.code {
        Code::KeyMissing | Code::KeyInvalid | Code::FingerprintMismatch => 3,
        Code::ResultNotReplayable => 6,
        Code::CallerMissing if problem.challenge.is_some() => 16,
        Code::CallerMissing => 7,
        Code::BodyTooLarge => 8,
        Code::InFlight => 10,
        Code::ResponseFailed
        | Code::CompletionFailed
        | Code::RecordUnreadable
        | Code::StoreError
        | Code::ScopeInvalid => 13,
        Code::StoreUnavailable | Code::ShuttingDown | Code::TooBusy | Code::BodyUnreadable => 14,
    }
}

/// Encodes a `google.rpc.Status` with an `ErrorInfo` and, if there is a retry time, a `RetryInfo`.
fn details(problem: &Problem) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    put_varint(1, status(problem).into(), &mut out);
    put_bytes(2, problem.detail.as_bytes(), &mut out);
    let mut info = Vec::new();
    put_bytes(
        1,
        problem.code.as_str().to_ascii_uppercase().replace('-', "_").as_bytes(),
        &mut info,
    );
    put_bytes(2, DOMAIN.as_bytes(), &mut info);
    let mut entry = Vec::new();
    put_bytes(1, b"retryable", &mut entry);
    put_bytes(2, problem.retryable.to_string().as_bytes(), &mut entry);
    put_bytes(3, &entry, &mut info);
    put_bytes(3, &any("ErrorInfo", &info), &mut out);
    if let Some(seconds) = problem.retry_after {
        let (mut duration, mut retry) = (Vec::new(), Vec::new());
        put_varint(1, seconds.into(), &mut duration);
        put_bytes(1, &duration, &mut retry);
        put_bytes(3, &any("RetryInfo", &retry), &mut out);
    }
    out
}

fn any(name: &str, value: &[u8]) -> Vec<u8> {
    let mut any = Vec::with_capacity(value.len() + ANY.len() + name.len() + 8);
    put_bytes(1, format!("{ANY}{name}").as_bytes(), &mut any);
    put_bytes(2, value, &mut any);
    any
}

fn put_varint(field: u8, value: u64, out: &mut Vec<u8>) {
    out.push(field << 3);
    varint(value, out);
}

fn put_bytes(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(field << 3 | 2);
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[expect(clippy::cast_possible_truncation, reason = "masked to the low seven bits")]
fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Percent-encodes text for `grpc-message`: percent signs, and all bytes that are not printable
/// ASCII.
fn percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | 0..=0x1f | 0x7f.. => {
                // Writing to a `String` cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
            _ => out.push(char::from(byte)),
        }
    }
    out
}

/// Encodes binary metadata: base64 without padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0, |group, byte| group << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            let sextet = group >> (18 - 6 * digit) & 0x3f;
            out.push(char::from(ALPHABET[sextet as usize]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_11_binary_metadata_is_base64_without_padding() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }

    #[test]
    fn http_11_a_message_is_escaped() {
        assert_eq!(percent("100 % of \u{e9}\n"), "100 %25 of %C3%A9%0A");
    }

    #[test]
    fn http_10_in_flight_is_aborted_with_retry_information() {
        let mut problem = Problem::new(Code::InFlight, "d");
        problem.retry_after = Some(300);
        let response = refusal(&problem);
        assert_eq!(response.status(), 200);
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(header("grpc-status"), Some("10"));
        assert_eq!(header("content-type"), Some("application/grpc"));
        assert_eq!(header("retry-after"), Some("300"));
        assert_eq!(header("grpc-retry-pushback-ms"), Some("300000"));
        let bytes = details(&problem);
        // Field 1 is the code, field 2 is the message, and the two details follow.
        assert!(bytes.starts_with(&[0x08, 10, 0x12, 1, b'd', 0x1a]));
        let find = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        assert!(find(b"type.googleapis.com/google.rpc.ErrorInfo"));
        assert!(find(b"\x0a\x09IN_FLIGHT\x12\x0aretryproof"));
        // The value of the `Any` is a `RetryInfo`, which contains a `Duration` of 300 seconds,
        // encoded as a varint.
        assert!(find(b"type.googleapis.com/google.rpc.RetryInfo\x12\x05\x0a\x03\x08\xac\x02"));
    }

    #[test]
    fn http_16_a_missing_caller_is_unauthenticated_where_there_is_a_challenge() {
        let mut problem = Problem::new(Code::CallerMissing, "d");
        assert_eq!(refusal(&problem).headers()["grpc-status"], "7");
        problem.challenge = Some("Bearer".to_owned());
        assert_eq!(refusal(&problem).headers()["grpc-status"], "16");
    }

    #[test]
    fn http_11_every_code_has_a_status_and_only_the_retryable_ones_say_when() {
        for (code, status) in [
            (Code::KeyMissing, 3),
            (Code::KeyInvalid, 3),
            (Code::FingerprintMismatch, 3),
            (Code::ResultNotReplayable, 6),
            (Code::CallerMissing, 7),
            (Code::BodyTooLarge, 8),
            (Code::InFlight, 10),
            (Code::ResponseFailed, 13),
            (Code::CompletionFailed, 13),
            (Code::RecordUnreadable, 13),
            (Code::StoreError, 13),
            (Code::ScopeInvalid, 13),
            (Code::BodyUnreadable, 14),
            (Code::StoreUnavailable, 14),
            (Code::ShuttingDown, 14),
            (Code::TooBusy, 14),
        ] {
            let response = refusal(&Problem::new(code, "d"));
            assert_eq!(response.headers()["grpc-status"], status.to_string(), "{code}");
            assert!(!response.headers().contains_key("retry-after"));
            assert!(response.body().is_empty());
        }
    }
}
