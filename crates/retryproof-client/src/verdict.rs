// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides which answers and which failures are worth another attempt. Each decision is one pure
//! function.

use http::StatusCode;

use crate::problem::Problem;

/// The facts about an answer that the decision uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseFacts<'a> {
    pub(crate) status: StatusCode,
    /// Whether the answer has `Idempotent-Replayed: true`.
    pub(crate) replayed: bool,
    /// The members of the answer's problem, if it has one.
    pub(crate) problem: Option<&'a Problem>,
    /// Whether the answer has a valid `Retry-After`.
    pub(crate) retry_after: bool,
}

/// Whether the same request can get a different answer if it is sent again with the same key.
pub(crate) fn is_retryable(seen: ResponseFacts<'_>) -> bool {
    // The answer is a replay. Every retry would get the same replay.
    if seen.replayed {
        return false;
    }
    let code = seen.problem.and_then(|problem| problem.code.as_deref());
    let said = seen.problem.and_then(|problem| problem.retryable);
    match (code, said) {
        // Both codes are final. A retry would get the same mismatch, or would find that the work
        // has run and left no result to replay. A problem can also state that it is not retryable.
        (Some("fingerprint-mismatch" | "result-not-replayable"), _) | (_, Some(false)) => {
            return false;
        }
        // The status of `in-flight` can be configured on the server, so check only the code
        // (HTTP-10).
        (Some("in-flight"), _) => return true,
        // The server did not receive the whole request body, so a retry can succeed. Only
        // `body-unreadable` and `in-flight` can make a 400 retryable.
        (Some("body-unreadable"), Some(true)) => return true,
        _ => {}
    }
    match seen.status.as_u16() {
        400 | 422 => false,
        // A 409 with neither `retryable` nor `Retry-After` comes from the application, so it is not
        // retried.
        409 => said == Some(true) || seen.retry_after,
        408 | 425 | 429 | 502 | 503 | 504 => true,
        status => status >= 400 && said == Some(true),
    }
}

/// Whether a request that got no answer can get one on the next attempt. No further attempt helps
/// if the request cannot be built, if a redirect fails, or if another middleware returned the
/// error.
pub(crate) fn is_passing(error: &reqwest_middleware::Error) -> bool {
    match error {
        reqwest_middleware::Error::Middleware(_) => false,
        reqwest_middleware::Error::Reqwest(error) => {
            !(error.is_builder() || error.is_redirect() || error.is_status())
        }
    }
}

/// Whether reqwest could send nothing to the URL of the request. The same error for a URL of
/// another origin is that of a redirect, which follows an answer.
pub(crate) fn cannot_be_sent(
    error: &reqwest_middleware::Error,
    is_own_origin: impl FnOnce(&reqwest::Url) -> bool,
) -> bool {
    match error {
        reqwest_middleware::Error::Middleware(_) => false,
        reqwest_middleware::Error::Reqwest(error) => {
            error.is_builder() && error.url().is_some_and(is_own_origin)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, code: Option<&str>, retryable: Option<bool>, retry_after: bool) -> bool {
        let problem = Problem { code: code.map(str::to_owned), retryable };
        let problem = (code.is_some() || retryable.is_some()).then_some(&problem);
        let status = StatusCode::from_u16(status).unwrap();
        let seen = ResponseFacts { status, replayed: false, problem, retry_after };
        let verdict = is_retryable(seen);
        assert!(
            !is_retryable(ResponseFacts { replayed: true, ..seen }),
            "a replay is final: {seen:?}"
        );
        verdict
    }

    #[test]
    fn http_11_bare_statuses() {
        for status in 100..600 {
            let expected = matches!(status, 408 | 425 | 429 | 502 | 503 | 504);
            assert_eq!(judged(status, None, None, false), expected, "{status}");
            // `Retry-After` makes a 409 retryable and changes no other status.
            assert_eq!(judged(status, None, None, true), expected || status == 409, "{status}");
        }
    }

    #[test]
    fn http_11_every_code_of_the_filter_is_obeyed() {
        for (status, code, retryable, expected) in [
            (400, "key-missing", false, false),
            (400, "key-invalid", false, false),
            (413, "body-too-large", false, false),
            (400, "body-unreadable", true, true),
            (400, "body-unreadable", false, false),
            (422, "fingerprint-mismatch", false, false),
            (409, "in-flight", true, true),
            (409, "result-not-replayable", false, false),
            (503, "store-unavailable", true, true),
            (503, "shutting-down", true, true),
            (503, "too-busy", true, true),
            (500, "response-failed", false, false),
            (500, "completion-failed", true, true),
            (500, "completion-failed", false, false),
            (500, "record-unreadable", false, false),
            (500, "store-error", false, false),
            (500, "scope-invalid", false, false),
        ] {
            assert_eq!(
                judged(status, Some(code), Some(retryable), false),
                expected,
                "{status} {code}"
            );
        }
    }

    #[test]
    fn fp_1_a_mismatch_is_never_retried_whatever_stands_beside_it() {
        for status in [409, 422, 429, 500, 503] {
            for retryable in [None, Some(true), Some(false)] {
                for code in ["fingerprint-mismatch", "result-not-replayable"] {
                    assert!(
                        !judged(status, Some(code), retryable, true),
                        "{status} {code} {retryable:?}"
                    );
                }
            }
        }
        assert!(!judged(422, None, Some(true), true));
        assert!(!judged(400, None, Some(true), true));
    }

    #[test]
    fn http_10_in_flight_is_retried_at_whatever_status_the_server_gives_it() {
        for status in [400, 409, 422, 423, 425, 500, 503] {
            assert!(judged(status, Some("in-flight"), None, false), "{status}");
        }
    }

    #[test]
    fn http_11_a_problem_that_says_no_is_believed_and_one_that_says_yes_from_500_on() {
        for status in [408, 425, 429, 502, 503, 504] {
            assert!(!judged(status, None, Some(false), true), "{status}");
        }
        assert!(judged(500, None, Some(true), false));
        assert!(!judged(500, None, Some(false), false));
        assert!(!judged(500, None, None, true), "after a plain 500 the work may be done");
        assert!(!judged(200, None, Some(true), true));
    }
}
