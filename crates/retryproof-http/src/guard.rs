// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single path that layer and annotated handler use: from a request to the one answer of its key.
//!
//! Order of steps: already guarded? key, declared length ([`admit`]); then, after an annotated endpoint has extracted
//! its arguments, scope and caller, body, fingerprint, acquire, and only after a grant the action's own task
//! ([`guarded`]). Nothing before the grant spawns, and every answer other than a grant leaves nothing behind.

use std::error::Error as StdError;
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, Uri};
use http_body::Body;
use retryproof_core::observe::Phase;
use retryproof_core::{
    Acquisition, Error, ErrorKind, Fingerprint, Held, IdempotencyContext, InFlight, Lease, Opened, Scope,
    StoredResult,
};
use tracing::Instrument as _;

use crate::answer::{Asked, replay};
use crate::body::{BoxError, CollectError, FromReplay, GuardedBody, ReplayBody, collect, declares_more};
use crate::capture::capture;
use crate::catch::catch;
use crate::decide::{BodyRead, Decision, Finding, decide};
use crate::digest::{Algorithm, Hasher, RequestParts, fingerprint, tagged};
use crate::filter::{Caller, Fingerprinter, IdempotencyFilter};
use crate::key;
use crate::policy::Policy;
use crate::route::Route;
use crate::scope::fold;
use crate::stored::StoredResponse;

/// A request extension: this very route is guarded already (HTTP-15), under this key and, once granted, this lease.
#[derive(Clone)]
pub(crate) struct Guarded(Arc<Marker>);

struct Marker {
    route: Route,
    key: String,
    lease: OnceLock<Lease>,
}

impl Guarded {
    #[cfg(feature = "axum")]
    pub(crate) fn key(&self) -> &str {
        &self.0.key
    }

    #[cfg(feature = "axum")]
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.0.lease.get()
    }
}

/// What the request's head alone decides.
pub(crate) enum Admission {
    /// Hand the request on, untouched.
    Pass,
    /// Answer with this.
    Refused(Response<ReplayBody>),
    /// Go on with [`guarded`].
    Keyed(Keyed),
}

/// A request with a well-formed key, at a guarded endpoint.
pub(crate) struct Keyed {
    pub(crate) filter: IdempotencyFilter,
    policy: Policy,
    marker: Guarded,
}

/// Steps 1 to 3: already guarded here, key, declared length.
pub(crate) fn admit<B: Body>(
    filter: &IdempotencyFilter,
    policy: &Policy,
    request: &mut Request<B>,
) -> Admission {
    let inner = &filter.0;
    if let Some(outer) = request.extensions().get::<Guarded>()
        && outer.0.route.is_that_of(request)
    {
        inner.warn_layered(policy.scope());
        return Admission::Pass;
    }
    let lines = request.headers().get_all(&inner.key_header).iter().map(http::HeaderValue::as_bytes);
    let finding = match key::parse(lines) {
        Ok(Some(key)) => {
            if !declares_more(request.body(), inner.web.max_body_bytes) {
                let key = key.into_string();
                let marker =
                    Guarded(Arc::new(Marker { route: Route::of(request), key, lease: OnceLock::new() }));
                request.extensions_mut().insert(marker.clone());
                return Admission::Keyed(Keyed { filter: filter.clone(), policy: *policy, marker });
            }
            Finding::BodyTooLarge(BodyRead::Declared)
        }
        Ok(None) => Finding::NoKey,
        Err(why) => Finding::BadKey(why),
    };
    match decide(finding, &inner.settings()) {
        Decision::Refuse(problem) => {
            let asked = Asked { method: request.method().clone(), version: request.version() };
            Admission::Refused(inner.render(&problem, &asked))
        }
        Decision::Pass | Decision::Replay => Admission::Pass,
    }
}

/// Steps 5 to 11 for a request that was admitted. `run` is the handler; it is called after the grant, on a task of
/// its own, with the same bytes again (HTTP-5, HTTP-12).
///
/// # Cancel safety
/// Dropped before the grant, nothing ran and no lease is left (ACQ-11). Dropped later, the action goes on.
///
/// # Panics
/// A panic of the action resumes here after its lease was released (HTTP-7).
pub(crate) async fn guarded<B, R, E, F, Fut>(
    keyed: Keyed,
    request: Request<B>,
    run: F,
) -> Result<Response<GuardedBody<R>>, E>
where
    B: FromReplay + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    E: Send + 'static,
    F: FnOnce(Request<B>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<R>, E>> + Send + 'static,
{
    let (parts, body) = request.into_parts();
    let prepared = keyed.prepare(&parts, body).await;
    let (call, trailers) = match prepared {
        Ok(prepared) => prepared,
        Err(answer) => return Ok(answer.map(GuardedBody::replay)),
    };
    let acquisition = call.filter.0.engine.try_acquire_tracked(&call.ctx).await;
    let held = match acquisition {
        Ok(Acquisition::Granted(held)) => held,
        other => return Ok(call.answer(other).map(GuardedBody::replay)),
    };
    // The first spawn on this path: replays and refusals never pay for one.
    let asked = call.asked.clone();
    let filter = call.filter.clone();
    let request = call.again(parts, trailers);
    let task = tokio::spawn(act(call, held, request, run).in_current_span());
    match task.await {
        Ok(result) => result,
        Err(gone) => match gone.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is going down, and dropped the task.
            Err(_) => Ok(filter.failed(ErrorKind::ShuttingDown, &asked).map(GuardedBody::replay)),
        },
    }
}

/// The action's own task: handler, capture, completion (steps 10e and 11).
async fn act<B, R, E, F, Fut>(
    call: Call,
    held: Held,
    request: Request<B>,
    run: F,
) -> Result<Response<GuardedBody<R>>, E>
where
    R: Body<Data = Bytes>,
    F: FnOnce(Request<B>) -> Fut,
    Fut: Future<Output = Result<Response<R>, E>>,
{
    call.granted(held.lease());
    match catch(async move { run(request).await }).await {
        Ok(Ok(response)) => Ok(capture(&call, held, response).await),
        Ok(Err(error)) => {
            // A failing release is logged by the engine and hides nothing (RUN-4).
            let _ = held.release_after(Phase::Action).await;
            Err(error)
        }
        Err(panic) => {
            let _ = held.release_after(Phase::Panic).await;
            resume_unwind(panic)
        }
    }
}

impl Keyed {
    /// Steps 5 to 7: identity, body, fingerprint.
    async fn prepare<B>(
        self,
        parts: &Parts,
        body: B,
    ) -> Result<(Call, Option<http::HeaderMap>), Response<ReplayBody>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let Self { filter, policy, marker } = self;
        let asked = Asked { method: parts.method.clone(), version: parts.version };
        let refuse = |finding| filter.refuse(finding, &asked);
        let scope = match policy.scope() {
            Some(scope) => retryproof_core::IntoScope::into_scope(scope),
            None => marker.0.route.default_scope(),
        };
        let scope: Scope = scope.map_err(|error| {
            tracing::error!(%error, "no idempotency scope for this route; name one (HTTP-16)");
            refuse(Finding::NoScope)
        })?;
        let caller = match filter.0.caller.as_ref().map(|hook| hook(parts)) {
            None | Some(Caller::Absent) => None,
            Some(Caller::Named(caller)) => Some(caller),
            Some(Caller::Refused(response)) => return Err(response.map(ReplayBody::from)),
        };
        let target = marker.0.route.target().clone();
        let hasher = match &filter.0.fingerprint {
            Fingerprinter::BuiltIn(algorithm @ (Algorithm::Request | Algorithm::Body)) => {
                Some(Hasher::new(*algorithm, parts.method.as_str(), target_str(&target)))
            }
            Fingerprinter::BuiltIn(Algorithm::Json) | Fingerprinter::Custom(_) => None,
        };
        let collected = collect(body, filter.0.web.max_body_bytes, hasher).await.map_err(|error| {
            refuse(match error {
                CollectError::TooLarge(read) => Finding::BodyTooLarge(read),
                CollectError::Unreadable => Finding::BodyUnreadable,
            })
        })?;
        let subject = Subject { method: parts.method.clone(), target, body: collected.data };
        let digest = match (collected.digest, &filter.0.fingerprint) {
            (Some(digest), _) => digest,
            (None, Fingerprinter::BuiltIn(algorithm)) => fingerprint(*algorithm, &subject.parts()),
            (None, Fingerprinter::Custom(custom)) => {
                tagged(custom.algorithm(), &custom.digest(&subject.parts()))
            }
        };
        let ctx = Fingerprint::new(&digest).and_then(|fingerprint| {
            let key = fold(caller.as_deref(), &marker.0.key);
            let mut ctx = IdempotencyContext::builder(scope, key).fingerprint(fingerprint);
            if let Some(ttl) = policy.ttl() {
                ctx = ctx.ttl(ttl);
            }
            if let Some(lease) = policy.lease() {
                ctx = ctx.lease(lease);
            }
            if let Some(wait) = policy.wait_timeout() {
                ctx = ctx.wait_timeout(wait);
            }
            ctx.build()
        });
        match ctx {
            Ok(ctx) => Ok((Call { filter, marker, ctx, subject, asked }, collected.trailers)),
            Err(error) => Err(filter.fail(&error, &asked)),
        }
    }
}

/// A call whose context is known: everything that judges a record or answers for it.
pub(crate) struct Call {
    pub(crate) filter: IdempotencyFilter,
    marker: Guarded,
    pub(crate) ctx: IdempotencyContext,
    subject: Subject,
    pub(crate) asked: Asked,
}

/// What was asked, kept to judge a record under its own algorithm (FP-3). All of it is shared, not copied.
struct Subject {
    method: Method,
    target: Uri,
    body: Bytes,
}

impl Subject {
    fn parts(&self) -> RequestParts<'_> {
        RequestParts::new(self.method.as_str(), target_str(&self.target), &self.body)
    }
}

fn target_str(target: &Uri) -> &str {
    target.path_and_query().map_or("", http::uri::PathAndQuery::as_str)
}

impl Call {
    /// The request again, over the buffered bytes.
    fn again<B: FromReplay>(&self, parts: Parts, trailers: Option<http::HeaderMap>) -> Request<B> {
        let body = B::from_replay(ReplayBody::new(self.subject.body.clone(), trailers));
        #[cfg_attr(
            not(feature = "axum"),
            expect(unused_mut, reason = "only axum has a limit of its own to lift")
        )]
        let mut request = Request::from_parts(parts, body);
        // The host's smaller default would refuse what was let in here, and behind a layer its 413 would be stored.
        #[cfg(feature = "axum")]
        axum_core::extract::DefaultBodyLimit::max(self.filter.0.web.max_body_bytes).apply(&mut request);
        request
    }

    /// Tells the handler's extractors about the lease.
    pub(crate) fn granted(&self, lease: &Lease) {
        let _ = self.marker.0.lease.set(lease.clone());
    }

    /// The answer for an acquisition that is not a grant (steps 10a to 10d).
    pub(crate) fn answer(&self, acquisition: Result<Acquisition, Error>) -> Response<ReplayBody> {
        match acquisition {
            Ok(Acquisition::Complete(stored)) => self.repeat(&stored),
            Ok(Acquisition::InFlight(in_flight)) => self.in_flight(in_flight),
            // Dropped, the lease runs out; `guarded` has taken every grant before.
            Ok(Acquisition::Granted(_)) => self.filter.failed(ErrorKind::Unexpected, &self.asked),
            Err(error) => self.filter.fail(&error, &self.asked),
        }
    }

    /// A completed record, judged and then replayed (FP-2: the judgement comes before anything is opened).
    pub(crate) fn repeat(&self, stored: &StoredResult) -> Response<ReplayBody> {
        let repeated =
            self.judge(stored).and_then(|finding| match decide(finding.0, &self.filter.0.settings()) {
                Decision::Replay => finding
                    .1
                    .ok_or_else(|| Error::corrupt("the stored value has no response"))
                    .and_then(|stored| {
                        replay(&stored)
                            .map_err(|corrupt| Error::corrupt("a field cannot be sent").because(corrupt))
                    }),
                Decision::Refuse(problem) => Ok(self.filter.0.render(&problem, &self.asked)),
                Decision::Pass => Err(Error::corrupt("a completed record cannot run")),
            });
        repeated
            .unwrap_or_else(|error| self.filter.fail(&error.for_identity(self.ctx.identity()), &self.asked))
    }

    fn judge(&self, stored: &StoredResult) -> Result<(Finding, Option<StoredResponse>), Error> {
        let own = self.judged_by(stored)?;
        Ok(match stored.open(own.as_ref())? {
            Opened::Mismatch => (Finding::Mismatch, None),
            Opened::Tombstone(tombstone) => (tombstone_finding(tombstone.detail()), None),
            Opened::Value(payload) => (Finding::Response, Some(StoredResponse::from_payload(payload)?)),
        })
    }

    /// Our fingerprint under the algorithm that the record names (FP-3).
    fn judged_by(&self, stored: &StoredResult) -> Result<Option<Fingerprint>, Error> {
        let own = self.ctx.fingerprint().copied();
        let (Some(mine), Some(theirs)) = (own, stored.fingerprint()) else { return Ok(own) };
        if mine.algorithm() == theirs.algorithm() {
            return Ok(own);
        }
        let algorithm = Algorithm::from_byte(theirs.algorithm()).ok_or_else(|| {
            Error::corrupt("the record names a fingerprint algorithm that this filter does not have")
                .with("algorithm", theirs.algorithm())
        })?;
        Fingerprint::new(&fingerprint(algorithm, &self.subject.parts())).map(Some)
    }

    pub(crate) fn in_flight(&self, in_flight: InFlight) -> Response<ReplayBody> {
        let retry_after = u32::try_from(in_flight.retry_after().as_secs()).unwrap_or(30);
        self.refuse(Finding::InFlight { retry_after })
    }

    pub(crate) fn refuse(&self, finding: Finding) -> Response<ReplayBody> {
        self.filter.refuse(finding, &self.asked)
    }
}

/// What a tombstone tells of the answer that was not kept. One without a readable detail is a tombstone all the same.
fn tombstone_finding(detail: &retryproof_core::Payload) -> Finding {
    let kept = StoredResponse::from_payload(detail.clone()).ok();
    let location = kept.as_ref().and_then(|kept| {
        let mut lines = kept.headers();
        lines
            .find(|(name, _)| *name == "location")
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    });
    Finding::Tombstone { original_status: kept.map(|kept| kept.status()), location }
}

impl IdempotencyFilter {
    /// The answer for a finding that is refused.
    fn refuse(&self, finding: Finding, asked: &Asked) -> Response<ReplayBody> {
        match decide(finding, &self.0.settings()) {
            Decision::Refuse(problem) => self.0.render(&problem, asked),
            // The findings that get here are refused by the table.
            Decision::Pass | Decision::Replay => self.failed(ErrorKind::Unexpected, asked),
        }
    }

    /// The answer for a failure of engine or store; said in the log, masked (ID-4, HTTP-14).
    fn fail(&self, error: &Error, asked: &Asked) -> Response<ReplayBody> {
        let source = error.source();
        if error.is_retryable() {
            tracing::warn!(%error, source, "nothing ran");
        } else {
            tracing::error!(%error, source, "nothing ran");
        }
        self.failed(error.kind(), asked)
    }

    fn failed(&self, kind: ErrorKind, asked: &Asked) -> Response<ReplayBody> {
        self.refuse(Finding::Failed { kind, ticket: self.0.ticket() }, asked)
    }
}
