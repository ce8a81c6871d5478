// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps 5 to 10 of a guarded request: whose it is, its fingerprint, the acquire, and what follows from the answer.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use retryproof_core::{Acquisition, Fingerprint, Held, IdempotencyContext, IntoScope as _, Scope};

use crate::action::start;
use crate::body::{CollectError, Collected, FromReplay, GuardedBody, ReplayBody};
use crate::decide::Finding;
use crate::digest::{Algorithm, Hasher, RequestParts, fingerprint};
use crate::filter::{Caller, Fingerprinter, IdempotencyFilter};
use crate::guard::{Awaited, Keyed};
use crate::judge::{Judge, Target};
use crate::route::Head;
use crate::scope::folded;

/// An admitted request, but for its body.
pub(crate) struct Asker {
    pub(crate) keyed: Keyed,
    pub(crate) parts: Box<Parts>,
}

/// Whose the request is.
pub(crate) struct Named {
    scope: Scope,
    caller: Option<String>,
}

/// A request that is ready to be acquired for.
pub(crate) struct Prepared {
    pub(crate) ctx: IdempotencyContext,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<Box<HeaderMap>>,
}

/// An answer that is rare: it takes no room in what is not.
type Refusal = Box<Response<ReplayBody>>;

/// What became of a request whose body is whole.
pub(crate) enum Step {
    /// The answer, without a run.
    Answered(Response<ReplayBody>),
    /// Its action may run.
    Granted(Box<Granted>),
    /// The store does not answer at once, or there is a holder to wait for.
    Waiting(Waiting),
}

/// On the heap, for a replay from a store at hand has none.
type Waiting = Pin<Box<dyn Future<Output = Result<Box<Granted>, Response<ReplayBody>>> + Send>>;

/// A request whose lease was granted.
pub(crate) struct Granted {
    asker: Asker,
    prepared: Prepared,
    held: Held,
}

impl Granted {
    pub(crate) fn filter(&self) -> IdempotencyFilter {
        self.asker.keyed.filter.clone()
    }

    /// The action, not polled yet.
    pub(crate) fn start<B, R, E, F, Fut>(
        self,
        awaited: Option<Box<Awaited>>,
        run: F,
    ) -> Pin<Box<impl Future<Output = Result<Response<GuardedBody<R>>, E>> + use<B, R, E, F, Fut>>>
    where
        B: FromReplay,
        R: Body<Data = Bytes>,
        F: FnOnce(Request<B>) -> Fut,
        Fut: Future<Output = Result<Response<R>, E>>,
    {
        let Self { asker: Asker { keyed, parts }, prepared, held } = self;
        start(keyed.grant(*parts, prepared, awaited, held.lease()), held, run)
    }
}

impl Asker {
    pub(crate) fn max_body_bytes(&self) -> usize {
        self.keyed.filter.0.web.max_body_bytes
    }

    /// Step 5. An `Err` is the answer.
    pub(crate) fn named(&self) -> Result<Named, Refusal> {
        let scope = match self.keyed.policy.scope() {
            Some(scope) => scope.into_scope(),
            None => Head::of_parts(&self.parts).default_scope(),
        };
        let scope = scope.map_err(|error| {
            tracing::error!(%error, "no idempotency scope for this route; name one (HTTP-16)");
            self.refuse(Finding::NoScope)
        })?;
        match self.keyed.filter.0.caller.as_ref().map(|hook| hook(&self.parts)) {
            None | Some(Caller::Absent) => Ok(Named { scope, caller: None }),
            Some(Caller::Named(caller)) => Ok(Named { scope, caller: Some(caller) }),
            Some(Caller::Refused(response)) => Err(Box::new(response.map(ReplayBody::from))),
        }
    }

    /// For a body that comes piece by piece.
    pub(crate) fn hasher(&self) -> Option<Hasher> {
        match &self.keyed.filter.0.fingerprint {
            Fingerprinter::BuiltIn(algorithm @ (Algorithm::Request | Algorithm::Body)) => {
                let head = Head::of_parts(&self.parts);
                Some(Hasher::new(*algorithm, head.method.as_str(), head.target()))
            }
            Fingerprinter::BuiltIn(Algorithm::Json) | Fingerprinter::Custom(_) => None,
        }
    }

    /// Steps 7 to 10.
    pub(crate) fn ask(self, named: Named, collected: Result<Collected, CollectError>) -> Step {
        let prepared = match self.prepare(named, collected) {
            Ok(prepared) => prepared,
            Err(refusal) => return Step::Answered(*refusal),
        };
        match self.keyed.filter.0.engine.try_acquire_tracked_now(&prepared.ctx) {
            Ok(Ok(Acquisition::Granted(held))) => {
                Step::Granted(Box::new(Granted { asker: self, prepared, held }))
            }
            Ok(other) => Step::Answered(self.judge(&prepared).answer(other)),
            Err(owner) => Step::Waiting(Box::pin(async move {
                match self.keyed.filter.0.engine.try_acquire_tracked_as(&prepared.ctx, owner).await {
                    Ok(Acquisition::Granted(held)) => Ok(Box::new(Granted { asker: self, prepared, held })),
                    other => Err(self.judge(&prepared).answer(other)),
                }
            })),
        }
    }

    fn prepare(
        &self,
        Named { scope, caller }: Named,
        collected: Result<Collected, CollectError>,
    ) -> Result<Prepared, Refusal> {
        let Keyed { filter, policy, key } = &self.keyed;
        let Collected { data: body, trailers, digest } = collected.map_err(|error| {
            self.refuse(match error {
                CollectError::TooLarge(read) => Finding::BodyTooLarge(read),
                CollectError::Unreadable => Finding::BodyUnreadable,
            })
        })?;
        let fingerprint = digest.unwrap_or_else(|| {
            let head = Head::of_parts(&self.parts);
            let asked = RequestParts::new(head.method.as_str(), head.target(), &body);
            match &filter.0.fingerprint {
                Fingerprinter::BuiltIn(algorithm) => fingerprint(*algorithm, &asked),
                Fingerprinter::Custom(custom) => {
                    Fingerprint::tagged(custom.algorithm(), &custom.digest(&asked))
                }
            }
        });
        let ctx = folded(caller.as_deref(), key.as_bytes(), |key| IdempotencyContext::builder(scope, key));
        let mut ctx = ctx.fingerprint(fingerprint);
        if let Some(ttl) = policy.ttl() {
            ctx = ctx.ttl(ttl);
        }
        if let Some(lease) = policy.lease() {
            ctx = ctx.lease(lease);
        }
        if let Some(wait) = policy.wait_timeout() {
            ctx = ctx.wait_timeout(wait);
        }
        match ctx.build() {
            Ok(ctx) => Ok(Prepared { ctx, body, trailers }),
            Err(error) => Err(Box::new(self.keyed.asked(&self.parts).fail(&error))),
        }
    }

    #[cold]
    fn refuse(&self, finding: Finding) -> Refusal {
        Box::new(self.keyed.asked(&self.parts).refuse(finding))
    }

    fn judge<'a>(&'a self, prepared: &'a Prepared) -> Judge<'a> {
        let target = Target::Of(Head::of_parts(&self.parts));
        let asked = self.keyed.asked(&self.parts);
        Judge { asked, target, ctx: &prepared.ctx, body: &prepared.body }
    }
}
