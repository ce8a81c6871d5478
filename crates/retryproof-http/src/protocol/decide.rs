// SPDX-License-Identifier: MIT OR Apache-2.0
//! The decision table: one pure function that decides whether a request is refused, and with which
//! problem. The function is not called for granted requests and replays.
//!
//! This file is over 400 lines long because the table and the tests of its rows belong together.
//!
//! | found | decision | rule |
//! |---|---|---|
//! | no key | pass, or 400 `key-missing` if keys are required | HTTP-3 |
//! | a key header without exactly one valid key | 400 `key-invalid` | HTTP-2 |
//! | a body over the limit | 413 `body-too-large` | HTTP-4 |
//! | a body that cannot be read | 400 `body-unreadable` | HTTP-5 |
//! | no scope | 500 `scope-invalid` | HTTP-16 |
//! | no caller | 401 `caller-missing` with the filter's challenge, or 403 without one | HTTP-16 |
//! | absent, lease granted | run; the engine decides this, not the table | HTTP-12 |
//! | COMPLETE, another request | 422 (per scope, or 409) `fingerprint-mismatch` | FP-1, HTTP-20 |
//! | COMPLETE, this request, a response | replay; `duplicate.rs` decides this, not the table | HTTP-8 |
//! | COMPLETE, this request, a tombstone | 409 `result-not-replayable` | HTTP-13 |
//! | COMPLETE, unreadable | 500 `record-unreadable` | CMP-8 |
//! | in progress past the wait | 409 (configurable) `in-flight` | HTTP-10 |
//! | store unavailable, too slow or full | 503 `store-unavailable` | HTTP-14 |
//! | shutting down; too many running | 503 `shutting-down`; `too-busy` | HTTP-14 |
//! | another store error | 500 `store-error` | HTTP-14 |
//! | response body broke off | 500 `response-failed` | HTTP-13 |
//! | completion failed, policy `propagate` | 500 `completion-failed` | CMP-4 |
//! | no transaction for the handler | 503 `store-unavailable`; 500 `store-error` if the handler began the transaction at the wrong time | CMP-7 |
//! | joined transaction not committed, or in doubt | 500 `completion-failed` | CMP-7 |

use retryproof_core::{ErrorKind, Recorded};

use super::key::KeyError;
use super::problem::{Code, Problem, retry_after_spread};

/// What the filter has found out about a request, a record or a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// No key header.
    NoKey,
    /// A key header without exactly one valid key.
    BadKey(KeyError),
    /// The body is over the limit.
    BodyTooLarge { read: OversizeBody, limit: usize },
    /// The body's stream failed.
    BodyUnreadable,
    /// The route has no valid scope.
    NoScope,
    /// The caller hook found no caller, and absent callers do not share keys.
    NoCaller,
    /// The record belongs to a different request; the scope chooses the status (HTTP-20).
    Mismatch { status: u16 },
    /// The record holds a tombstone.
    Tombstone { original_status: Option<u16>, location: Option<String> },
    /// Another request holds this key.
    InFlight {
        /// Whole seconds, 1 to 30 (HTTP-10).
        retry_after: u32,
    },
    /// The engine or the store failed before anything ran, for example because a record could not
    /// be read.
    Failed {
        kind: ErrorKind,
        /// A counter value from which `Retry-After` is computed.
        ticket: u32,
    },
    /// The handler's response body broke off.
    ResponseFailed,
    /// The completion failed, and the configured policy makes the call fail.
    CompletionFailed(Recorded),
    /// The handler could not get its transaction (CMP-7).
    NoTx {
        what: NoTx,
        /// A counter value from which `Retry-After` is computed.
        ticket: u32,
    },
    /// The transaction that the record joined was not committed, or its outcome is not known
    /// (CMP-7). The handler's response is never sent.
    NotCommitted(CommitFailure),
}

/// Why a joined transaction does not count as committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitFailure {
    /// The commit failed, and the transaction was rolled back.
    RolledBack,
    /// The lease was lost, and the transaction was rolled back.
    LeaseLost,
    /// The reply to the commit was lost, and the store cannot tell whether the commit succeeded.
    InDoubt,
}

/// A response extension that marks a response made from a [`TxError`](crate::TxError). The filter
/// replaces each marked response with one of its own problems (HTTP-11, HTTP-14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoTx {
    /// The database could not open a transaction.
    Unavailable,
    /// The application began the transaction at the wrong time.
    Misused,
}

/// How much of an oversize body was read. The guard closes an HTTP/1.x connection in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OversizeBody {
    /// Nothing was read, because the declared length is over the limit.
    Declared,
    /// The body was read up to the limit.
    Partly,
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Pass the request on unchanged.
    Pass,
    /// Send this problem as the response.
    Refuse(Box<Problem>),
}

/// The settings that the table depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecisionSettings<'a> {
    pub(crate) required: bool,
    pub(crate) key_header: &'a str,
    pub(crate) in_flight_status: u16,
    pub(crate) challenge: Option<&'a str>,
}

/// Applies the table in the module's documentation.
pub(crate) fn decide(finding: Finding, settings: &DecisionSettings<'_>) -> Decision {
    match finding {
        Finding::NoKey if !settings.required => Decision::Pass,
        refused => Decision::Refuse(Box::new(refuse(refused, settings))),
    }
}

fn refuse(finding: Finding, settings: &DecisionSettings<'_>) -> Problem {
    let header = settings.key_header;
    match finding {
        Finding::NoKey => Problem::new(
            Code::KeyMissing,
            format!(
                "the request has no header {header}; choose a key for the request, and send the \
                 same key with every retry"
            ),
        ),
        Finding::BadKey(why) => {
            Problem::new(Code::KeyInvalid, format!("the header {header} {}", why.reason()))
        }
        Finding::BodyTooLarge { read, limit } => Problem {
            close: true,
            ..Problem::new(
                Code::BodyTooLarge,
                match read {
                    OversizeBody::Declared => {
                        format!(
                            "the request declares a body that is larger than the limit of {limit} \
                             bytes; the request was not carried out"
                        )
                    }
                    OversizeBody::Partly => {
                        format!(
                            "the request body is larger than the limit of {limit} bytes; the \
                             request was not carried out"
                        )
                    }
                },
            )
        },
        Finding::BodyUnreadable => Problem {
            close: true,
            ..Problem::new(
                Code::BodyUnreadable,
                "the request body ended early or was malformed; the request was not carried out",
            )
        },
        Finding::Mismatch { status } => Problem {
            status,
            ..Problem::new(
                Code::FingerprintMismatch,
                "the key was used before with a different request; send the first request again, \
                 or use a new key for a new request",
            )
        },
        Finding::Tombstone { original_status, location } => Problem {
            original_status,
            location,
            ..Problem::new(
                Code::ResultNotReplayable,
                "the request was carried out, but its response was not stored; the request will \
                 not be carried out again",
            )
        },
        Finding::InFlight { retry_after } => Problem {
            status: settings.in_flight_status,
            retry_after: Some(retry_after),
            ..Problem::new(
                Code::InFlight,
                "an earlier request with this key is still being carried out; this request was not \
                 carried out",
            )
        },
        Finding::ResponseFailed => Problem::new(
            Code::ResponseFailed,
            // The text does not say that the work will never run again, because a retry does run it
            // if the guard of the scope is switched off.
            "the request was carried out, but its response was interrupted; do not send the \
             request again",
        ),
        Finding::CompletionFailed(Recorded::Tombstone) => Problem {
            retryable: false,
            ..Problem::new(
                Code::CompletionFailed,
                "the request was carried out, but its response could not be recorded; the request \
                 will not be carried out again",
            )
        },
        Finding::CompletionFailed(_) => Problem::new(
            Code::CompletionFailed,
            "the request was carried out, but its response was not recorded; a later retry may \
             carry out the request again",
        ),
        Finding::NotCommitted(what) => Problem::new(
            Code::CompletionFailed,
            match what {
                CommitFailure::RolledBack => {
                    "all changes of the request were rolled back; send the request again"
                }
                CommitFailure::LeaseLost => {
                    "another attempt to carry out the request took over, so all changes of this \
                     attempt were rolled back; send the request again to get the response of the \
                     other attempt"
                }
                CommitFailure::InDoubt => {
                    "it is not known yet whether the request was carried out completely or not at \
                     all; send the request again to find out"
                }
            },
        ),
        Finding::Failed { kind, ticket } => failed(kind, ticket),
        Finding::NoTx { what, ticket } => no_tx(what, ticket),
        Finding::NoScope => Problem::new(
            Code::ScopeInvalid,
            "the service is misconfigured, because this endpoint has no idempotency scope; the \
             request was not carried out",
        ),
        Finding::NoCaller => Problem {
            status: if settings.challenge.is_some() { 401 } else { Code::CallerMissing.status() },
            challenge: settings.challenge.map(str::to_owned),
            ..Problem::new(
                Code::CallerMissing,
                "the request does not identify its caller; the request was not carried out",
            )
        },
    }
}

fn failed(kind: ErrorKind, ticket: u32) -> Problem {
    let later = |code, detail: &'static str| Problem {
        retry_after: Some(retry_after_spread(ticket)),
        ..Problem::new(code, detail)
    };
    match kind {
        ErrorKind::Unavailable => later(
            Code::StoreUnavailable,
            "the idempotency store did not answer; the request was not carried out",
        ),
        ErrorKind::Full => later(
            Code::StoreUnavailable,
            "the idempotency store is full and accepts no new keys; the request was not carried \
             out",
        ),
        ErrorKind::ShuttingDown => later(
            Code::ShuttingDown,
            "the service is shutting down and starts no new work; the request was not carried out",
        ),
        ErrorKind::TooBusy => later(
            Code::TooBusy,
            "the service is already carrying out as many requests as its limit allows; the request \
             was not carried out",
        ),
        ErrorKind::Corrupt | ErrorKind::Codec => Problem::new(
            Code::RecordUnreadable,
            "the stored response for this key cannot be read; this request was not carried out",
        ),
        _ => Problem::new(
            Code::StoreError,
            "the idempotency store failed; the request was not carried out",
        ),
    }
}

/// Creates the problem for a handler that could not get its transaction.
pub(crate) fn no_tx(what: NoTx, ticket: u32) -> Problem {
    match what {
        NoTx::Unavailable => Problem {
            retry_after: Some(retry_after_spread(ticket)),
            ..Problem::new(
                Code::StoreUnavailable,
                "the service could not open a database transaction; nothing was written",
            )
        },
        NoTx::Misused => Problem::new(
            Code::StoreError,
            "the service has a bug: the endpoint used its database transaction before the handler \
             started or after it returned",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: DecisionSettings<'_> = DecisionSettings {
        required: true,
        key_header: "Idempotency-Key",
        in_flight_status: 409,
        challenge: None,
    };

    fn refused(finding: Finding) -> Problem {
        match decide(finding.clone(), &SETTINGS) {
            Decision::Refuse(problem) => *problem,
            other => panic!("{finding:?} should be refused, but was answered with {other:?}"),
        }
    }

    #[test]
    fn http_3_a_missing_key_is_refused_or_passed_by_one_switch() {
        assert_eq!(refused(Finding::NoKey).code, Code::KeyMissing);
        let optional = DecisionSettings { required: false, ..SETTINGS };
        assert_eq!(decide(Finding::NoKey, &optional), Decision::Pass);
        // Even if keys are optional, a key that is sent is checked.
        assert!(matches!(decide(Finding::BadKey(KeyError::Empty), &optional), Decision::Refuse(_)));
    }

    #[test]
    fn http_11_every_refusal_has_its_code() {
        use Finding as F;
        for (finding, code) in [
            (F::BadKey(KeyError::Malformed), Code::KeyInvalid),
            (F::BodyTooLarge { read: OversizeBody::Partly, limit: 1024 }, Code::BodyTooLarge),
            (F::BodyUnreadable, Code::BodyUnreadable),
            (F::NoScope, Code::ScopeInvalid),
            (F::NoCaller, Code::CallerMissing),
            (F::Mismatch { status: 422 }, Code::FingerprintMismatch),
            (F::Tombstone { original_status: None, location: None }, Code::ResultNotReplayable),
            (F::InFlight { retry_after: 3 }, Code::InFlight),
            (F::ResponseFailed, Code::ResponseFailed),
            (F::CompletionFailed(Recorded::No), Code::CompletionFailed),
            (F::Failed { kind: ErrorKind::Unavailable, ticket: 7 }, Code::StoreUnavailable),
            (F::Failed { kind: ErrorKind::Full, ticket: 7 }, Code::StoreUnavailable),
            (F::Failed { kind: ErrorKind::ShuttingDown, ticket: 7 }, Code::ShuttingDown),
            (F::Failed { kind: ErrorKind::TooBusy, ticket: 7 }, Code::TooBusy),
            (F::Failed { kind: ErrorKind::Corrupt, ticket: 7 }, Code::RecordUnreadable),
            (F::Failed { kind: ErrorKind::Schema, ticket: 7 }, Code::StoreError),
            (F::Failed { kind: ErrorKind::Unexpected, ticket: 7 }, Code::StoreError),
            (F::Failed { kind: ErrorKind::Invalid, ticket: 7 }, Code::StoreError),
        ] {
            let problem = refused(finding);
            assert_eq!(problem.code, code);
            assert_eq!(problem.status, code.status());
        }
    }

    #[test]
    fn http_10_in_flight_has_its_own_status_and_retry_after() {
        let settings = DecisionSettings { in_flight_status: 425, ..SETTINGS };
        let Decision::Refuse(problem) = decide(Finding::InFlight { retry_after: 9 }, &settings)
        else {
            panic!("refused")
        };
        assert_eq!((problem.status, problem.retry_after, problem.retryable), (425, Some(9), true));
        // A tombstone is answered with 409 and without Retry-After, regardless of the in-flight
        // status (HTTP-13).
        let tombstone =
            Finding::Tombstone { original_status: Some(201), location: Some("/p/1".into()) };
        let Decision::Refuse(problem) = decide(tombstone, &settings) else { panic!("refused") };
        assert_eq!((problem.status, problem.retry_after, problem.retryable), (409, None, false));
        assert_eq!(
            (problem.original_status, problem.location.as_deref()),
            (Some(201), Some("/p/1"))
        );
    }

    #[test]
    fn http_16_a_missing_caller_is_401_with_the_challenge_or_403() {
        let problem = refused(Finding::NoCaller);
        assert_eq!((problem.status, problem.retryable, problem.challenge), (403, false, None));
        let settings = DecisionSettings { challenge: Some("Bearer"), ..SETTINGS };
        let Decision::Refuse(problem) = decide(Finding::NoCaller, &settings) else {
            panic!("refused")
        };
        assert_eq!((problem.status, problem.challenge.as_deref()), (401, Some("Bearer")));
    }

    #[test]
    fn http_14_only_what_passes_by_itself_carries_retry_after() {
        for (kind, some) in [
            (ErrorKind::Unavailable, true),
            (ErrorKind::Full, true),
            (ErrorKind::ShuttingDown, true),
            (ErrorKind::TooBusy, true),
            (ErrorKind::Corrupt, false),
            (ErrorKind::Unexpected, false),
        ] {
            let problem = refused(Finding::Failed { kind, ticket: 7 });
            assert_eq!(problem.retry_after.is_some(), some, "{kind:?}");
            assert_eq!(problem.retryable, some, "{kind:?}");
            assert!(problem.retry_after.is_none_or(|seconds| (1..=5).contains(&seconds)));
        }
    }

    #[test]
    fn cmp_9_a_failed_completion_is_retryable_unless_a_tombstone_stands() {
        assert!(refused(Finding::CompletionFailed(Recorded::No)).retryable);
        assert!(!refused(Finding::CompletionFailed(Recorded::Tombstone)).retryable);
    }

    #[test]
    fn cmp_7_a_transaction_that_was_not_committed_may_be_retried() {
        for what in [CommitFailure::RolledBack, CommitFailure::LeaseLost, CommitFailure::InDoubt] {
            let problem = refused(Finding::NotCommitted(what));
            assert_eq!(
                (problem.code, problem.status, problem.retryable),
                (Code::CompletionFailed, 500, true)
            );
        }
    }

    #[test]
    fn http_14_a_transaction_that_could_not_be_opened_may_be_retried_later() {
        let seconds = no_tx(NoTx::Unavailable, 7).retry_after;
        assert!(seconds.is_some_and(|seconds| (1..=5).contains(&seconds)), "{seconds:?}");
        assert_eq!(no_tx(NoTx::Misused, 7).retry_after, None);
    }

    #[test]
    fn http_4_the_limit_stands_in_the_detail_and_the_connection_closes() {
        let problem = refused(Finding::BodyTooLarge { read: OversizeBody::Declared, limit: 1024 });
        assert!(problem.detail.contains("1024") && problem.close);
    }
}
