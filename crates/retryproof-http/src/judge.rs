// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers that are not the handler's: refusals, failures, and the judgement of a record that
//! stands (steps 10a to 10d).

use std::error::Error as StdError;

use bytes::Bytes;
use http::{Method, Response, Version};
use retryproof_core::{
    Acquisition, Error, ErrorKind, Fingerprint, IdempotencyContext, InFlight, Opened, Payload,
    StoredResult,
};

use crate::body::ReplayBody;
use crate::filter::Inner;
use crate::protocol::decide::{Decision, Finding, decide};
use crate::protocol::fingerprint::{FingerprintAlgorithm, RequestParts, fingerprint};
use crate::protocol::problem::Problem;
use crate::protocol::stored::{StoredRecord, StoredResponse, record_of, unreadable};
use crate::response::FrameworkResponse;
use crate::route::Head;

/// What an answer of the filter's own has to know of its request.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) filter: &'a Inner,
    pub(crate) method: &'a Method,
    pub(crate) version: Version,
}

impl Asked<'_> {
    /// The answer for a finding that is refused.
    #[cold]
    pub(crate) fn refuse(&self, finding: Finding) -> Response<ReplayBody> {
        match decide(finding, &self.filter.settings()) {
            Decision::Refuse(problem) => self.render(&problem),
            // The findings that get here are refused by the table.
            Decision::Pass => self.failed(ErrorKind::Unexpected),
        }
    }

    #[cold]
    fn render(&self, problem: &Problem) -> Response<ReplayBody> {
        self.filter.render_problem(problem, self.method, self.version)
    }

    /// The answer for a failure of engine or store; said in the log, masked (ID-4, HTTP-14).
    #[cold]
    pub(crate) fn fail(&self, error: &Error) -> Response<ReplayBody> {
        let source = error.source();
        if error.is_retryable() {
            tracing::warn!(%error, source, "nothing ran");
        } else {
            tracing::error!(%error, source, "nothing ran");
        }
        self.failed(error.kind())
    }

    #[cold]
    pub(crate) fn failed(&self, kind: ErrorKind) -> Response<ReplayBody> {
        self.refuse(Finding::Failed { kind, ticket: self.filter.ticket() })
    }
}

/// Judges the record of a key for one request.
#[derive(Clone, Copy)]
pub(crate) struct Judge<'a> {
    pub(crate) asked: Asked<'a>,
    pub(crate) target: Target<'a>,
    pub(crate) ctx: &'a IdempotencyContext,
    pub(crate) body: &'a Bytes,
}

/// Path and query; looked for only when they are needed.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    Of(Head<'a>),
    Known(&'a str),
}

impl<'a> Target<'a> {
    pub(crate) fn as_str(&self) -> &'a str {
        match self {
            Self::Of(head) => head.target(),
            Self::Known(target) => target,
        }
    }
}

impl Judge<'_> {
    /// The answer for an acquisition that is not a grant (steps 10a to 10d).
    pub(crate) fn answer<A: FrameworkResponse>(
        &self,
        acquisition: Result<Acquisition, Error>,
    ) -> A {
        A::from_refusal(match acquisition {
            Ok(Acquisition::Complete(stored)) => return self.repeat(&stored),
            Ok(Acquisition::InFlight(in_flight)) => self.in_flight(in_flight),
            // Dropped, the lease runs out; `asked` has taken every grant before.
            Ok(Acquisition::Granted(_)) => self.asked.failed(ErrorKind::Unexpected),
            Err(error) => self.asked.fail(&error),
        })
    }

    /// A completed record, judged and then replayed (FP-2: the judgement comes before anything is
    /// opened).
    pub(crate) fn repeat<A: FrameworkResponse>(&self, stored: &StoredResult) -> A {
        let opened = self.judged_by(stored).and_then(|own| stored.open(own.as_ref()));
        let repeated = opened.and_then(|opened| match opened {
            Opened::Mismatch => Ok(A::from_refusal(self.asked.refuse(Finding::Mismatch))),
            Opened::Tombstone(tombstone) => {
                Ok(A::from_refusal(self.asked.refuse(tombstone_finding(tombstone.detail()))))
            }
            Opened::Value(payload) => {
                let record = record_of(payload)?;
                let to_head = *self.asked.method == Method::HEAD;
                A::from_record(StoredRecord { bytes: &record, to_head }).map_err(unreadable)
            }
        });
        repeated.unwrap_or_else(|error| {
            A::from_refusal(self.asked.fail(&error.for_identity(self.ctx.identity())))
        })
    }

    #[cold]
    pub(crate) fn in_flight(&self, in_flight: InFlight) -> Response<ReplayBody> {
        let retry_after = u32::try_from(in_flight.retry_after().as_secs()).unwrap_or(30);
        self.asked.refuse(Finding::InFlight { retry_after })
    }

    /// Our fingerprint under the algorithm that the record names (FP-3).
    fn judged_by(&self, stored: &StoredResult) -> Result<Option<Fingerprint>, Error> {
        let own = self.ctx.fingerprint().copied();
        let (Some(mine), Some(theirs)) = (own, stored.fingerprint()) else { return Ok(own) };
        if mine.algorithm() == theirs.algorithm() {
            return Ok(own);
        }
        let algorithm = FingerprintAlgorithm::from_byte(theirs.algorithm()).ok_or_else(|| {
            Error::corrupt(
                "the record names a fingerprint algorithm that this filter does not have",
            )
            .with("algorithm", theirs.algorithm())
        })?;
        let asked = RequestParts::new(self.asked.method.as_str(), self.target.as_str(), self.body);
        Ok(Some(fingerprint(algorithm, &asked)))
    }
}

/// What a tombstone tells of the answer that was not kept. One without a readable detail is a
/// tombstone all the same.
fn tombstone_finding(detail: &Payload) -> Finding {
    let kept = StoredResponse::from_payload(detail.clone()).ok();
    let location = kept.as_ref().and_then(|kept| {
        let mut lines = kept.headers();
        lines
            .find(|(name, _)| *name == "location")
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    });
    Finding::Tombstone { original_status: kept.map(|kept| kept.status()), location }
}
