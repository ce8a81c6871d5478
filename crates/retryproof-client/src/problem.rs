// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the members of a problem document that decide whether to retry (HTTP-11).

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::Value;

/// The largest body that is parsed, in bytes. A problem has a few hundred bytes.
const LIMIT: usize = 64 << 10;

/// The two members that a client may rely on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) code: Option<String>,
    pub(crate) retryable: Option<bool>,
}

/// Whether the answer's media type is `application/problem+json`.
pub(crate) fn is_problem(headers: &HeaderMap) -> bool {
    is_of_type(headers, "application/problem+json")
}

/// Whether the body's media type is `essence`, in any letter case and with any parameters.
pub(crate) fn is_of_type(headers: &HeaderMap, essence: &str) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let declared = media_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    declared.trim().eq_ignore_ascii_case(essence)
}

/// Reads a whole body. Ignores a body that is not a JSON object, and any member of the wrong type.
pub(crate) fn read(body: &[u8]) -> Problem {
    let parsed =
        (body.len() <= LIMIT).then(|| serde_json::from_slice::<Value>(body).ok()).flatten();
    let Some(Value::Object(members)) = parsed else { return Problem::default() };
    Problem {
        code: members.get("code").and_then(Value::as_str).map(str::to_owned),
        retryable: members.get("retryable").and_then(Value::as_bool),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> (Option<String>, Option<bool>) {
        let Problem { code, retryable } = read(body.as_bytes());
        (code, retryable)
    }

    #[test]
    fn http_11_code_and_retryable_are_read_and_nothing_is_guessed() {
        assert_eq!(
            of(r#"{"code":"in-flight","retryable":true,"x":1}"#),
            (Some("in-flight".to_owned()), Some(true))
        );
        for body in
            ["", "{", "[]", "null", "true", "\"retryable\"", r#"{"retryable":"true","code":7}"#]
        {
            assert_eq!(of(body), (None, None), "{body}");
        }
        let large = format!(r#"{{"retryable":true,"x":"{}"}}"#, "x".repeat(LIMIT));
        assert_eq!(of(&large), (None, None));
        assert_eq!(of(&"[".repeat(10_000)), (None, None));
    }

    #[test]
    fn http_11_a_problem_is_known_by_its_media_type() {
        for (value, expected) in [
            ("application/problem+json", true),
            ("Application/Problem+JSON; charset=utf-8", true),
            ("application/json", false),
            ("application/problem+xml", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, value.parse().unwrap());
            assert_eq!(is_problem(&headers), expected, "{value}");
        }
        assert!(!is_problem(&HeaderMap::new()));
    }
}
