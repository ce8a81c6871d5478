// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the client reads from an answer: problem documents (HTTP-11) and `Retry-After` (HTTP-10).

use std::time::{Duration, UNIX_EPOCH};

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use serde_json::Value;

use super::{about, kind};
use crate::product::client::{problem, retry_after as after};

pub(super) fn run(input: &[u8]) -> u64 {
    let read = problem::read(input);
    let members = serde_json::from_slice::<Value>(input).ok();
    let member = |name: &str| members.as_ref().and_then(|members| members.get(name));
    assert_eq!(read.code.as_deref(), member("code").and_then(Value::as_str));
    assert_eq!(read.retryable, member("retryable").and_then(Value::as_bool));
    if let (Some(code), Some(retryable)) = (&read.code, read.retryable) {
        let written = serde_json::json!({ "code": code, "retryable": retryable, "status": 409 });
        assert_eq!(problem::read(written.to_string().as_bytes()), read);
    }
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(input) {
        headers.insert(http::header::CONTENT_TYPE, value);
        let is_problem = problem::is_problem(&headers);
        let begins = input.to_ascii_lowercase();
        let begins = begins.trim_ascii().starts_with(b"application/problem+json");
        assert!(begins || !is_problem, "not the media type of a problem");
    }
    kind((members.is_some(), read.code.map(|code| about(code.len())), read.retryable))
}

/// Checks how `Retry-After` is read. The first line of the input is the response's `Date`; the
/// others are `Retry-After`.
pub(super) fn retry_after(input: &[u8]) -> u64 {
    let mut headers = HeaderMap::new();
    let mut lines = input.split(|byte| *byte == b'\n');
    let date = lines.next().and_then(|line| HeaderValue::from_bytes(line).ok());
    if let Some(date) = date {
        headers.insert(DATE, date);
    }
    for line in lines.filter_map(|line| HeaderValue::from_bytes(line).ok()) {
        headers.append(RETRY_AFTER, line);
    }
    let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
    let wait = after::read(&headers, || now);
    let seconds = |value: &HeaderValue| {
        let text = value.to_str().ok()?.trim_matches([' ', '\t']);
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let most = headers.get_all(RETRY_AFTER).iter().filter_map(seconds).max();
    assert!(most.map(Duration::from_secs) <= wait, "a longer wait was asked for");
    kind((wait.map(|wait| 64 - wait.as_secs().leading_zeros()), most.is_some()))
}
