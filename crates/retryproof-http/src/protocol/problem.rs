// SPDX-License-Identifier: MIT OR Apache-2.0
//! The filter's own responses, which are RFC 9457 problems (HTTP-10, HTTP-11, HTTP-14).

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// The `type` of a problem consists of this base and the problem's code.
const TYPE_BASE: &str = "urn:retryproof:problem:";

/// Why the filter refused a request, or why a request failed. The text form is stable, so clients
/// can rely on it.
/// ```
/// use retryproof_http::Code;
///
/// assert_eq!(Code::InFlight.as_str(), "in-flight");
/// assert_eq!(Code::FingerprintMismatch.status(), 422);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The endpoint requires a key and the request has none (HTTP-3).
    KeyMissing,
    /// The key header does not hold exactly one well-formed key (HTTP-2).
    KeyInvalid,
    /// The request body is over the limit (HTTP-4).
    BodyTooLarge,
    /// The request body could not be read to its end; no lease was acquired (HTTP-5).
    BodyUnreadable,
    /// The key was used with a different request (FP-1).
    FingerprintMismatch,
    /// Another request holds this key (HTTP-10).
    InFlight,
    /// The work is done, but its response was not kept (HTTP-13).
    ResultNotReplayable,
    /// The store is unavailable, too slow or full (HTTP-14), or no transaction could be opened
    /// (CMP-7).
    StoreUnavailable,
    /// The engine is shutting down and grants no more leases (HTTP-14).
    ShuttingDown,
    /// Too many actions are running (HTTP-14).
    TooBusy,
    /// The handler's response body broke off; the work counts as done (HTTP-13).
    ResponseFailed,
    /// The result could not be recorded and the configured policy makes the call fail (CMP-4), or a
    /// joined transaction may not have been committed (CMP-7).
    CompletionFailed,
    /// The stored record cannot be read (CMP-8).
    RecordUnreadable,
    /// The store failed for a reason that a retry cannot resolve (HTTP-14), or the handler began
    /// its transaction at the wrong time (CMP-7).
    StoreError,
    /// There is no valid scope for this route (HTTP-16).
    ScopeInvalid,
    /// The caller hook found no caller (HTTP-16).
    CallerMissing,
}

impl Code {
    /// Returns the stable code, which is the last part of the problem's `type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeyMissing => "key-missing",
            Self::KeyInvalid => "key-invalid",
            Self::BodyTooLarge => "body-too-large",
            Self::BodyUnreadable => "body-unreadable",
            Self::FingerprintMismatch => "fingerprint-mismatch",
            Self::InFlight => "in-flight",
            Self::ResultNotReplayable => "result-not-replayable",
            Self::StoreUnavailable => "store-unavailable",
            Self::ShuttingDown => "shutting-down",
            Self::TooBusy => "too-busy",
            Self::ResponseFailed => "response-failed",
            Self::CompletionFailed => "completion-failed",
            Self::RecordUnreadable => "record-unreadable",
            Self::StoreError => "store-error",
            Self::ScopeInvalid => "scope-invalid",
            Self::CallerMissing => "caller-missing",
        }
    }

    /// Returns the default status of the code. The statuses of `in-flight` and
    /// `fingerprint-mismatch` are configurable, and `caller-missing` is 401 if the filter has a
    /// challenge.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::KeyMissing | Self::KeyInvalid | Self::BodyUnreadable => 400,
            Self::CallerMissing => 403,
            Self::InFlight | Self::ResultNotReplayable => 409,
            Self::BodyTooLarge => 413,
            Self::FingerprintMismatch => 422,
            Self::ResponseFailed
            | Self::CompletionFailed
            | Self::RecordUnreadable
            | Self::StoreError
            | Self::ScopeInvalid => 500,
            Self::StoreUnavailable | Self::ShuttingDown | Self::TooBusy => 503,
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::KeyMissing => "An idempotency key is required",
            Self::KeyInvalid => "The idempotency key is malformed",
            Self::BodyTooLarge => "The request body is too large",
            Self::BodyUnreadable => "The request body could not be read",
            Self::FingerprintMismatch => "The idempotency key was used with another request",
            Self::InFlight => "A request with this idempotency key is in progress",
            Self::ResultNotReplayable => {
                "The request was carried out, but its response cannot be repeated"
            }
            Self::StoreUnavailable => "The idempotency store is unavailable",
            Self::ShuttingDown => "The service is shutting down",
            Self::TooBusy => "Too many requests are in progress",
            Self::ResponseFailed => "The response was interrupted",
            Self::CompletionFailed => "The result could not be recorded",
            Self::RecordUnreadable => "The stored response cannot be read",
            Self::StoreError => "The idempotency store failed",
            Self::CallerMissing => "The caller could not be identified",
            Self::ScopeInvalid => "The endpoint has no valid idempotency scope",
        }
    }

    const fn retryable(self) -> bool {
        matches!(
            self,
            Self::BodyUnreadable
                | Self::InFlight
                | Self::StoreUnavailable
                | Self::ShuttingDown
                | Self::TooBusy
                | Self::CompletionFailed
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One of the filter's own responses, as data. A problem never contains a key, a body or a store's
/// error text. For example, a client sees this text from [`to_json`](Self::to_json):
///
/// ```json
/// {
///   "type": "urn:retryproof:problem:in-flight",
///   "title": "A request with this idempotency key is in progress",
///   "status": 409,
///   "detail": "…",
///   "code": "in-flight",
///   "retryable": true
/// }
/// ```
/// [`FilterBuilder::rejections`](crate::FilterBuilder::rejections) sets a different format for all
/// problems.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// What happened.
    pub code: Code,
    /// The status of the response.
    pub status: u16,
    /// One sentence for the client's developer.
    pub detail: Cow<'static, str>,
    /// Whether the same request can succeed if it is sent again.
    pub retryable: bool,
    /// The value of `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
    /// The status of the first response, if that response was not kept (HTTP-13).
    pub original_status: Option<u16>,
    /// The `Location` of the first response, if that response was not kept (HTTP-13). `Debug`
    /// prints the location, because a location is not secret.
    pub location: Option<String>,
    /// The value of `WWW-Authenticate` in a 401 (HTTP-16).
    pub challenge: Option<String>,
    /// Whether an HTTP/1.x connection has to be closed, because part of the request body was not
    /// read.
    pub close: bool,
}

impl Problem {
    /// Creates a problem with the default status of `code`. The code also decides whether the
    /// problem is retryable.
    pub(crate) fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            status: code.status(),
            detail: detail.into(),
            retryable: code.retryable(),
            retry_after: None,
            original_status: None,
            location: None,
            challenge: None,
            close: false,
        }
    }

    /// Renders the `application/problem+json` body.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = String::with_capacity(320);
        let code = self.code.as_str();
        let title = self.code.title();
        // `write!` into a String cannot fail.
        let _ = write!(
            json,
            r#"{{"type":"{TYPE_BASE}{code}","title":"{title}","status":{},"detail":"#,
            self.status
        );
        quote(&self.detail, &mut json);
        let _ = write!(json, r#","code":"{code}","retryable":{}"#, self.retryable);
        if let Some(status) = self.original_status {
            let _ = write!(json, r#","original-status":{status}"#);
        }
        if let Some(location) = &self.location {
            json.push_str(r#","location":"#);
            quote(location, &mut json);
        }
        json.push('}');
        json
    }
}

/// Appends the text as a JSON string.
fn quote(text: &str, json: &mut String) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\0'..='\u{1f}' => {
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            _ => json.push(c),
        }
    }
    json.push('"');
}

/// Returns the `Retry-After` of a 503. The value varies from 1 to 5 seconds, so that clients that
/// were refused together do not retry together (HTTP-14). `ticket` is a counter value.
pub(crate) fn retry_after_spread(ticket: u32) -> u32 {
    // Spread the values with Fibonacci hashing, so that consecutive tickets get values that are far
    // apart.
    1 + (ticket.wrapping_mul(0x9e37_79b9) >> 16) % 5
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Code; 16] = [
        Code::KeyMissing,
        Code::KeyInvalid,
        Code::BodyTooLarge,
        Code::BodyUnreadable,
        Code::FingerprintMismatch,
        Code::InFlight,
        Code::ResultNotReplayable,
        Code::StoreUnavailable,
        Code::ShuttingDown,
        Code::TooBusy,
        Code::ResponseFailed,
        Code::CompletionFailed,
        Code::RecordUnreadable,
        Code::StoreError,
        Code::ScopeInvalid,
        Code::CallerMissing,
    ];

    #[test]
    fn http_11_a_problem_is_rfc_9457_with_code_and_retryable() {
        assert_eq!(
            Problem::new(Code::KeyMissing, "say \"why\"").to_json(),
            concat!(
                r#"{"type":"urn:retryproof:problem:key-missing","#,
                r#""title":"An idempotency key is required","status":400,"#,
                r#""detail":"say \"why\"","code":"key-missing","retryable":false}"#
            )
        );
    }

    #[test]
    fn http_13_a_tombstone_tells_its_status_and_location() {
        let mut problem = Problem::new(Code::ResultNotReplayable, "d");
        problem.original_status = Some(201);
        problem.location = Some("/p/1\"\\\u{1}\u{e9}".to_owned());
        assert!(problem.to_json().ends_with(
            "\"code\":\"result-not-replayable\",\"retryable\":false,\"original-status\":201,\
             \"location\":\"/p/1\\\"\\\\\\u0001\u{e9}\"}"
        ));
    }

    #[test]
    fn http_11_every_code_has_its_status_and_word_on_retrying() {
        for code in ALL {
            let retryable = matches!(
                code.as_str(),
                "in-flight"
                    | "store-unavailable"
                    | "shutting-down"
                    | "too-busy"
                    | "completion-failed"
                    | "body-unreadable"
            );
            let problem = Problem::new(code, "d");
            assert_eq!(problem.retryable, retryable, "{code}");
            assert_eq!(problem.status, code.status());
            assert!(
                problem.to_json().contains(&format!("\"type\":\"urn:retryproof:problem:{code}\""))
            );
        }
        let statuses: Vec<u16> = ALL.iter().map(|code| code.status()).collect();
        assert_eq!(
            statuses,
            [400, 400, 413, 400, 422, 409, 409, 503, 503, 503, 500, 500, 500, 500, 500, 403]
        );
    }

    #[test]
    fn http_14_retry_after_of_a_503_is_spread_over_1_to_5() {
        let mut seen = [0_u32; 6];
        for ticket in 0..1000 {
            seen[usize::try_from(retry_after_spread(ticket)).unwrap()] += 1;
        }
        assert_eq!(seen[0], 0);
        assert!(seen[1..].iter().all(|count| (150..=250).contains(count)), "{seen:?}");
    }
}
