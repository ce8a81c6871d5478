// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps 5 to 10 of a guarded request: whose it is, its fingerprint, the acquire, and what follows
//! from the answer.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, Version};
use http_body::Body;
use retryproof_core::{
    Acquisition, Error, Fingerprint, HeldLease, IdempotencyContext, IntoScope as _, Scope,
};
use tokio::task::JoinHandle;

use crate::action::{Ended, start};
use crate::body::{
    BoxError, CollectError, Collected, FromReplay, GuardedBody, ReplayBody, collect, declares_more,
};
use crate::filter::{Absent, Caller, CallerFuture, CallerHook, CallerIdentity, Callers};
use crate::filter::{FingerprintMethod, IdempotencyFilter};
use crate::guard::{Awaited, Call, Guarded, Keyed};
use crate::judge::{Asked, Judge, Target};
use crate::protocol::decide::{Finding, OversizeBody};
use crate::protocol::fingerprint::{
    FingerprintAlgorithm, FingerprintHasher, RequestParts, fingerprint,
};
use crate::response::FrameworkResponse;
use crate::route::{Head, Route};
use crate::scope::folded;

/// The head of an admitted request, of whatever type it is.
pub(crate) trait Asking {
    fn method(&self) -> &Method;
    fn version(&self) -> Version;
    fn target(&self) -> Target<'_>;
    fn default_scope(&self) -> Result<Scope, Error>;
    fn caller(&self, hook: &CallerHook) -> CallerFuture;
    fn route(&self) -> Route;

    /// The limit on the request's body, which is at most `own`.
    fn body_limit(&mut self, own: usize) -> usize {
        own
    }
}

impl Asking for Box<Parts> {
    #[cfg(feature = "axum")]
    fn body_limit(&mut self, own: usize) -> usize {
        crate::axum::body_limit(&mut self.extensions, own)
    }

    fn method(&self) -> &Method {
        &self.method
    }

    fn version(&self) -> Version {
        self.version
    }

    fn target(&self) -> Target<'_> {
        Target::Of(Head::of_parts(self))
    }

    fn default_scope(&self) -> Result<Scope, Error> {
        Head::of_parts(self).default_scope()
    }

    fn caller(&self, hook: &CallerHook) -> CallerFuture {
        hook(self)
    }

    fn route(&self) -> Route {
        Route::of(&Head::of_parts(self))
    }
}

/// The largest body of which canonical JSON is made where the request is served, in bytes: half a
/// millisecond of work in the worst case, which takes 32 ns for each byte.
const SLOW_JSON: usize = 16 << 10;

/// Bodies up to this many bytes are not measured against the application's own limit before the
/// grant.
const SMALL_BODY: u64 = 1 << 10;

/// An admitted request, but for its body.
pub(crate) struct Asker<H> {
    pub(crate) keyed: Keyed,
    pub(crate) head: H,
}

/// Whose the request is.
struct Named {
    scope: Scope,
    by: CallerIdentity,
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
enum Step<H, A, W> {
    /// The answer, without a run; and the head once more.
    Answered(A, H),
    /// Its action may run.
    Granted(Box<Granted<H>>),
    /// The store does not answer at once, or there is a holder to wait for. On the heap, for a
    /// replay from a store at hand has no wait.
    Waiting(Pin<Box<W>>),
}

/// A grant, or the answer of a request that is not granted, and its head once more.
pub(crate) type Acquired<H, A> = Result<Box<Granted<H>>, (A, H)>;

/// Steps 5 to 10: up to the answer of a request that is not granted, or to a grant, whose action
/// has to be started and polled without waiting for anything before.
///
/// Here nothing is said of `Send`: the future is it where the request is.
#[expect(clippy::manual_async_fn, reason = "an `async fn` is larger")]
pub(crate) fn asked<H, B, A>(
    mut asker: Asker<H>,
    body: B,
) -> impl Future<Output = Acquired<H, A>> + use<H, B, A>
where
    H: Asking,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
    A: FrameworkResponse,
{
    async move {
        let caller = match asker.caller() {
            None => None,
            Some(CallerFuture::Now(caller)) => Some(caller),
            Some(CallerFuture::Later(answering)) => Some(answering.await),
        };
        let named = match asker.named(caller) {
            Ok(named) => named,
            Err(refusal) => return Err((A::from_refusal(*refusal), asker.head)),
        };
        let limit = asker.body_limit(&body);
        let mut collected = match declares_more(&body, limit) {
            true => Err(CollectError::TooLarge(OversizeBody::Declared)),
            false => collect(body, limit, || asker.hasher()).await,
        };
        if let Ok(whole) = &mut collected
            && asker.is_slow(whole)
        {
            whole.digest = asker.digest_elsewhere(whole.data.clone()).await.ok();
        }
        // In two steps, so that the future has no room for an answer while it waits.
        let step = match asker.ask::<A>(named, collected, limit) {
            Step::Answered(answer, head) => return Err((answer, head)),
            Step::Granted(granted) => Ok(granted),
            Step::Waiting(waiting) => Err(waiting),
        };
        match step {
            Ok(granted) => Ok(granted),
            Err(waiting) => waiting.await,
        }
    }
}

/// A request whose lease was granted.
pub(crate) struct Granted<H> {
    asker: Asker<H>,
    prepared: Prepared,
    held: HeldLease,
}

impl<H: Asking> Granted<H> {
    pub(crate) fn filter(&self) -> IdempotencyFilter {
        self.asker.keyed.filter.clone()
    }

    /// The action, not polled yet; `run` is the handler.
    pub(crate) fn start<T, R, E, F, Fut>(
        self,
        awaited: Option<Box<Awaited>>,
        run: F,
    ) -> Pin<Box<impl Future<Output = Result<T, E>> + use<H, T, R, E, F, Fut>>>
    where
        T: Ended<R>,
        R: Body<Data = Bytes>,
        F: FnOnce(H, Guarded, Bytes, Option<Box<HeaderMap>>) -> Fut,
        Fut: Future<Output = Result<Response<R>, E>>,
    {
        let Self { asker: Asker { keyed, head }, prepared, held } = self;
        let Prepared { ctx, body, trailers } = prepared;
        let granted = keyed.grant(head.route(), head.version(), awaited, held.lease());
        let call = Call::new(granted.clone(), ctx, body.clone());
        start(call, held, move || run(head, granted, body, trailers))
    }
}

impl Granted<Box<Parts>> {
    /// [`start`](Self::start) of a handler that takes a request with the same bytes again.
    pub(crate) fn start_request<B, R, E, F, Fut>(
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
        self.start(awaited, move |mut parts: Box<Parts>, granted, body, trailers| {
            parts.extensions.insert(granted);
            #[cfg(feature = "axum")]
            let length = body.len();
            let request =
                Request::from_parts(*parts, B::from_replay(ReplayBody::new(body, trailers)));
            #[cfg(feature = "axum")]
            let request = crate::axum::lift_body_limit(request, length);
            run(request)
        })
    }
}

impl<H: Asking> Asker<H> {
    /// The filter's limit on a body, or a smaller one of the application's own (HTTP-4). What is
    /// small in any case is left to the extractors, which know that limit too: then to look for it
    /// would cost more than the rest.
    fn body_limit(&mut self, body: &impl Body) -> usize {
        let own = self.keyed.filter.0.web.max_body_bytes;
        match body.size_hint().upper() {
            Some(most) if most <= SMALL_BODY => own,
            _ => self.head.body_limit(own),
        }
    }

    /// What the hook says, if there is one.
    fn caller(&self) -> Option<CallerFuture> {
        self.keyed.filter.0.callers.hook().map(|hook| self.head.caller(hook))
    }

    /// Step 5. An `Err` is the answer.
    fn named(&self, caller: Option<Caller>) -> Result<Named, Refusal> {
        let scope = match self.keyed.policy.scope() {
            Some(scope) => scope.into_scope(),
            None => self.head.default_scope(),
        };
        let scope = scope.map_err(|error| {
            tracing::error!(%error, "no idempotency scope for this route; name one (HTTP-16)");
            self.refuse(Finding::NoScope)
        })?;
        match (caller, &self.keyed.filter.0.callers) {
            (None, _) => Ok(Named { scope, by: CallerIdentity::Anyone }),
            (Some(Caller::Named(caller)), _) => {
                Ok(Named { scope, by: CallerIdentity::Named(caller) })
            }
            (Some(Caller::Absent), Callers::Hook(_, Absent::Shares)) => {
                Ok(Named { scope, by: CallerIdentity::Absent })
            }
            (Some(Caller::Absent), _) => Err(self.refuse(Finding::NoCaller)),
            (Some(Caller::Refused(response)), _) => Err(Box::new(response.map(ReplayBody::from))),
        }
    }

    /// For a body that comes piece by piece.
    fn hasher(&self) -> Option<FingerprintHasher> {
        match &self.keyed.filter.0.fingerprint {
            FingerprintMethod::BuiltIn(
                algorithm @ (FingerprintAlgorithm::Request | FingerprintAlgorithm::Body),
            ) => Some(FingerprintHasher::new(
                *algorithm,
                self.head.method().as_str(),
                self.head.target().as_str(),
            )),
            FingerprintMethod::BuiltIn(FingerprintAlgorithm::Json)
            | FingerprintMethod::Custom(_) => None,
        }
    }

    /// Whether the fingerprint of a body takes so long that it is not made on a thread that serves
    /// other requests too.
    fn is_slow(&self, body: &Collected) -> bool {
        body.digest.is_none()
            && body.data.len() > SLOW_JSON
            && matches!(
                self.keyed.filter.0.fingerprint,
                FingerprintMethod::BuiltIn(FingerprintAlgorithm::Json)
            )
    }

    /// The fingerprint of canonical JSON, made on a thread of the runtime's for blocking work.
    fn digest_elsewhere(&self, body: Bytes) -> JoinHandle<Fingerprint> {
        let (method, target) =
            (self.head.method().to_string(), self.head.target().as_str().to_owned());
        tokio::task::spawn_blocking(move || {
            fingerprint(FingerprintAlgorithm::Json, &RequestParts::new(&method, &target, &body))
        })
    }

    /// Steps 7 to 10.
    fn ask<A: FrameworkResponse>(
        self,
        named: Named,
        collected: Result<Collected, CollectError>,
        limit: usize,
    ) -> Step<H, A, impl Future<Output = Acquired<H, A>> + use<H, A>> {
        let prepared = match self.prepare(named, collected, limit) {
            Ok(prepared) => prepared,
            Err(refusal) => return Step::Answered(A::from_refusal(*refusal), self.head),
        };
        match self.keyed.filter.0.engine.try_acquire_tracked_now(&prepared.ctx) {
            Ok(Ok(Acquisition::Granted(held))) => {
                Step::Granted(Box::new(Granted { asker: self, prepared, held }))
            }
            Ok(other) => {
                let answer = self.judge(&prepared).answer(other);
                Step::Answered(answer, self.head)
            }
            Err(owner) => Step::Waiting(Box::pin(async move {
                match self.keyed.filter.0.engine.try_acquire_tracked_as(&prepared.ctx, owner).await
                {
                    Ok(Acquisition::Granted(held)) => {
                        Ok(Box::new(Granted { asker: self, prepared, held }))
                    }
                    other => {
                        let answer = self.judge(&prepared).answer(other);
                        Err((answer, self.head))
                    }
                }
            })),
        }
    }

    fn prepare(
        &self,
        Named { scope, by }: Named,
        collected: Result<Collected, CollectError>,
        limit: usize,
    ) -> Result<Prepared, Refusal> {
        let Keyed { filter, policy, key } = &self.keyed;
        let Collected { data: body, trailers, digest } = collected.map_err(|error| {
            self.refuse(match error {
                CollectError::TooLarge(read) => Finding::BodyTooLarge { read, limit },
                CollectError::Unreadable => Finding::BodyUnreadable,
            })
        })?;
        let fingerprint = digest.unwrap_or_else(|| {
            let target = self.head.target();
            let asked = RequestParts::new(self.head.method().as_str(), target.as_str(), &body);
            match &filter.0.fingerprint {
                FingerprintMethod::BuiltIn(algorithm) => fingerprint(*algorithm, &asked),
                FingerprintMethod::Custom(custom) => {
                    Fingerprint::tagged(custom.algorithm(), &custom.digest(&asked))
                }
            }
        });
        let ctx = folded(&by, key.as_bytes(), |key| IdempotencyContext::builder(scope, key));
        // Kept while a duplicate waits (ACQ-13).
        let mut ctx = ctx.fingerprint(fingerprint).held_bytes(body.len());
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
            Err(error) => Err(Box::new(self.asked().fail(&error))),
        }
    }

    #[cold]
    fn refuse(&self, finding: Finding) -> Refusal {
        Box::new(self.asked().refuse(finding))
    }

    fn asked(&self) -> Asked<'_> {
        let head = &self.head;
        Asked { filter: &self.keyed.filter.0, method: head.method(), version: head.version() }
    }

    fn judge<'a>(&'a self, prepared: &'a Prepared) -> Judge<'a> {
        Judge {
            asked: self.asked(),
            target: self.head.target(),
            ctx: &prepared.ctx,
            body: &prepared.body,
        }
    }
}
