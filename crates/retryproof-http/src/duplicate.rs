// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates the response to a request that is not granted: the stored response, a tombstone, a
//! mismatch, or "in flight" (HTTP-8, HTTP-10, HTTP-13, FP-1).

use bytes::Bytes;
use http::Method;
use retryproof_core::clock::Instant;
use retryproof_core::{
    Acquisition, CallAnswer, Error, ErrorKind, Fingerprint, IdempotencyContext, InFlight, Opened,
    Payload, StoredResult,
};

use crate::body::ReplayBody;
use crate::call::{AdmittedRequest, PreparedRequest, RunningCall};
use crate::head::RequestHead;
use crate::protocol::decide::Finding;
use crate::protocol::fingerprint::{
    FingerprintAlgorithm, RequestParts, are_comparable, fingerprint, has_target, leaves_out,
};
use crate::protocol::stored::{StoredRecord, StoredResponse, record_of, unreadable};
use crate::response::{FrameworkResponse, ResponseContext};
use crate::switches::PolicySwitches;

/// A request whose key belongs to another call, finished or running.
pub(crate) struct DuplicateRequest<'a, T> {
    response: ResponseContext<'a>,
    /// Path and query, computed only if a record's fingerprint needs them.
    target: T,
    context: &'a IdempotencyContext,
    switches: PolicySwitches,
    body: &'a Bytes,
}

impl<'a> DuplicateRequest<'a, ()> {
    pub(crate) fn of<H: RequestHead>(
        admitted: &'a AdmittedRequest,
        head: &'a H,
        PreparedRequest { context, body, .. }: &'a PreparedRequest,
    ) -> DuplicateRequest<'a, impl Fn() -> &'a str> {
        DuplicateRequest {
            response: ResponseContext::of_head(&admitted.filter.0, head),
            target: || head.target(),
            context,
            switches: admitted.terms.switches,
            body,
        }
    }

    /// Treats a call as a duplicate after another run has taken over its key.
    pub(crate) fn of_call<R>(
        call: &'a RunningCall<R>,
    ) -> DuplicateRequest<'a, impl Fn() -> &'a str> {
        DuplicateRequest {
            response: ResponseContext::of_call(call.mark()),
            target: || call.mark().route().target(),
            context: call.context(),
            switches: call.mark().switches(),
            body: call.request_body(),
        }
    }
}

impl<'a, T: Fn() -> &'a str> DuplicateRequest<'a, T> {
    /// Creates the response to a request that got no lease. `began` is the time at which the
    /// request's call began.
    pub(crate) fn respond<A: FrameworkResponse>(
        &self,
        acquired: Result<Acquisition, Error>,
        began: Instant,
    ) -> A {
        A::from_refusal(match acquired {
            Ok(Acquisition::Complete(stored)) => {
                let (response, answer) = self.respond_from_record(&stored);
                // The answer is known only after the record was opened, so report it here (FP-3,
                // CMP-8).
                self.response.filter.engine.report_answer(self.context, began, || answer);
                return response;
            }
            Ok(Acquisition::InFlight(in_flight)) => self.in_flight(in_flight),
            Ok(Acquisition::Mismatch) => self.mismatch(),
            // `acquire` handles every grant, so a grant here is a bug. Its lease is dropped and
            // runs out.
            Ok(Acquisition::Granted(_)) => self.response.fail_with(ErrorKind::Unexpected),
            Err(error) => self.response.fail(&error),
        })
    }

    /// Creates the response from a completed record, and returns it together with the answer to
    /// report. The fingerprints are compared before anything in the record is opened (FP-2).
    pub(crate) fn respond_from_record<'s, A: FrameworkResponse>(
        &self,
        stored: &'s StoredResult,
    ) -> (A, CallAnswer<'s>) {
        let response = self.open(stored).and_then(|opened| match opened {
            Opened::Mismatch => Ok((A::from_refusal(self.mismatch()), CallAnswer::Mismatch)),
            Opened::Tombstone(tombstone) => {
                let response = self.response.refuse(tombstone_finding(tombstone.detail()));
                Ok((A::from_refusal(response), CallAnswer::NotReplayable))
            }
            Opened::Value(payload) => {
                let record = record_of(payload)?;
                let to_head = *self.response.method == Method::HEAD;
                let response = A::from_record(StoredRecord { bytes: &record, to_head });
                Ok((response.map_err(unreadable)?, CallAnswer::Replayed(stored.holder())))
            }
        });
        response.unwrap_or_else(|error| {
            let error = error.for_identity(self.context.identity());
            (A::from_refusal(self.response.fail(&error)), CallAnswer::Refused(error.kind()))
        })
    }

    #[cold]
    fn mismatch(&self) -> http::Response<ReplayBody> {
        let scope = self.context.identity().scope();
        let status = self.response.filter.switches.mismatch_status(scope, self.switches);
        self.response.refuse(Finding::Mismatch { status })
    }

    #[cold]
    pub(crate) fn in_flight(&self, in_flight: InFlight) -> http::Response<ReplayBody> {
        let retry_after = u32::try_from(in_flight.retry_after().as_secs()).unwrap_or(30);
        self.response.refuse(Finding::InFlight { retry_after })
    }

    /// Opens the record with the request's fingerprint, computed with the algorithm that the record
    /// names (FP-3).
    fn open(&self, stored: &StoredResult) -> Result<Opened, Error> {
        let own = self.context.fingerprint();
        match (own, stored.fingerprint()) {
            (Some(mine), Some(theirs)) if !are_comparable(mine, theirs) => {
                stored.open(Some(&self.fingerprint_like(theirs, mine)?))
            }
            _ => stored.open(own),
        }
    }

    /// Returns the request's fingerprint, computed in the same way as the record's fingerprint
    /// `theirs`.
    #[cold]
    fn fingerprint_like(
        &self,
        theirs: &Fingerprint,
        mine: &Fingerprint,
    ) -> Result<Fingerprint, Error> {
        let parts = RequestParts::new(self.response.method.as_str(), (self.target)(), self.body);
        if leaves_out(theirs) {
            // The record's fingerprint does not name the members that it leaves out, so only
            // method, path and query are compared. If the bodies were compared too, every retry
            // after a change of `fingerprint-ignore` would be refused (FP-5).
            tracing::debug!(
                identity = %self.context.identity(),
                "the body of a retry is not compared with the first body, because \
                 `fingerprint-ignore` has changed since the first request"
            );
            return Ok(if has_target(theirs, &parts) { *theirs } else { *mine });
        }
        let algorithm = theirs.algorithm();
        let known = FingerprintAlgorithm::from_byte(algorithm).ok_or_else(|| {
            Error::corrupt(
                "the request cannot be compared with the first request, because this filter does \
                 not support the fingerprint algorithm of the first request's record",
            )
            .with("algorithm", algorithm)
        })?;
        Ok(fingerprint(known, &parts))
    }
}

/// Reads what a tombstone keeps of the response that was not stored. A record whose details cannot
/// be read still counts as a tombstone.
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
