// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single path that layer and annotated handler use: from a request to the one answer of its key.
//!
//! Order of steps: already guarded? key, declared length ([`admit`]); then, after an annotated endpoint has extracted
//! its arguments, scope and caller, body, fingerprint, acquire, and only after a grant the action's own task
//! ([`guarded`]). Nothing before the grant spawns, and every answer other than a grant leaves nothing behind.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version};
use http_body::Body;
use retryproof_core::{
    Acquisition, ErrorKind, Fingerprint, Held, IdempotencyContext, IntoScope as _, Lease, Scope,
};

use crate::action::{Running, start};
use crate::body::{
    BoxError, CollectError, Collected, FromReplay, GuardedBody, ReplayBody, collect, declares_more,
};
use crate::decide::{BodyRead, Decision, Finding, decide};
use crate::digest::{Algorithm, Hasher, RequestParts, fingerprint};
use crate::filter::{Caller, Fingerprinter, IdempotencyFilter, Inner};
use crate::joined::{HandlerTx, Taken};
use crate::judge::{Asked, Judge, Target};
use crate::key::{self, HeaderKey, KeyError};
use crate::policy::AtHand;
use crate::route::{Head, Route};
use crate::scope::folded;

/// A request extension of the running action: this very route is guarded already (HTTP-15), under this key and this
/// lease. A replay has no use for it, and never makes one.
#[derive(Clone)]
pub(crate) struct Guarded(Arc<Granted>);

struct Granted {
    filter: IdempotencyFilter,
    route: Route,
    version: Version,
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "axum's extractors read it"))]
    key: Key,
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "axum's extractors read it"))]
    lease: Lease,
    /// Made by the handler that wants one (CMP-7).
    tx: OnceLock<Arc<dyn HandlerTx>>,
}

impl Guarded {
    /// The transaction of the call, made by `make` if there is none yet.
    pub(crate) fn tx(&self, make: impl FnOnce() -> Arc<dyn HandlerTx>) -> Arc<dyn HandlerTx> {
        Arc::clone(self.0.tx.get_or_init(make))
    }
}

#[cfg(feature = "axum")]
impl Guarded {
    pub(crate) fn key(&self) -> &Key {
        &self.0.key
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.0.lease
    }
}

/// Where an extractor that runs before the grant waits for the lease.
pub(crate) type Slot = Arc<OnceLock<Lease>>;

/// What extractors that ran before the grant wait for. Boxed, for few do.
pub(crate) struct Awaited {
    pub(crate) lease: Option<Slot>,
    pub(crate) tx: Option<Arc<dyn HandlerTx>>,
}

/// What the request's head alone decides.
pub(crate) enum Admission {
    /// Hand the request on, untouched.
    Pass,
    /// Answer with this.
    Refused(Response<ReplayBody>),
    /// Go on with [`guarded`], under this key.
    Keyed(Key),
}

/// A request with a well-formed key, at a guarded endpoint.
pub(crate) struct Keyed {
    pub(crate) filter: IdempotencyFilter,
    pub(crate) policy: AtHand,
    pub(crate) key: Key,
}

/// The client's key, decoded: in most cases a part of the header line, which is shared and not copied.
#[derive(Clone)]
pub(crate) enum Key {
    Line { line: HeaderValue, start: usize, end: usize },
    Decoded(Box<str>),
}

impl Key {
    /// The key of a request; `None` when it has no line of the key header.
    fn of(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Self>, KeyError> {
        let mut lines = headers.get_all(name).iter();
        let first = lines.next();
        let key =
            key::parse(first.into_iter().chain(lines).map(HeaderValue::as_bytes))?.map(HeaderKey::into_inner);
        let (Some(key), Some(line)) = (key, first) else { return Ok(None) };
        Ok(Some(match key {
            Cow::Owned(key) => Self::Decoded(key.into()),
            Cow::Borrowed(key) => {
                // Where the key stands in its line: `parse` hands out a part of what it was given.
                let start = key.as_ptr().addr() - line.as_bytes().as_ptr().addr();
                Self::Line { line: line.clone(), start, end: start + key.len() }
            }
        }))
    }

    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "axum's extractors read it"))]
    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Line { line, start, end } => line.as_bytes().get(*start..*end).unwrap_or_default(),
            Self::Decoded(key) => key.as_bytes(),
        }
    }
}

/// Steps 1 to 3: already guarded here, key, declared length.
pub(crate) fn admit<B: Body>(filter: &IdempotencyFilter, policy: &AtHand, request: &Request<B>) -> Admission {
    let inner = &filter.0;
    if let Some(Guarded(outer)) = request.extensions().get()
        && outer.route.is_that_of(&Head::of(request))
    {
        inner.warn_layered(policy.scope());
        return Admission::Pass;
    }
    let finding = match Key::of(request.headers(), &inner.key_header) {
        Ok(Some(key)) if !declares_more(request.body(), inner.web.max_body_bytes) => {
            return Admission::Keyed(key);
        }
        Ok(Some(_)) => Finding::BodyTooLarge(BodyRead::Declared),
        Ok(None) => Finding::NoKey,
        Err(why) => Finding::BadKey(why),
    };
    match decide(finding, &inner.settings()) {
        Decision::Refuse(problem) => {
            Admission::Refused(inner.render(&problem, request.method(), request.version()))
        }
        Decision::Pass | Decision::Replay => Admission::Pass,
    }
}

/// Steps 5 to 11 for a request that was admitted. `run` is the handler; it is called after the grant, with the same
/// bytes again, and from its first wait on it runs on a task of its own (HTTP-5, HTTP-12).
///
/// What waits for nothing, which is all of a replay from a store at hand, is done in functions of their own
/// ([`attempt`]), and what may wait is on the heap: the future of every guarded request is moved several times, and its
/// size is a good part of what one costs.
///
/// # Cancel safety
/// Dropped before the grant, nothing ran and no lease is left (ACQ-11). Dropped later, the action goes on.
///
/// # Panics
/// A panic of the action resumes here after its lease was released (HTTP-7).
#[expect(clippy::manual_async_fn, reason = "an `async fn` is larger")]
pub(crate) fn guarded<B, R, E, F, Fut>(
    keyed: Keyed,
    parts: Box<Parts>,
    body: B,
    awaited: Option<Box<Awaited>>,
    run: F,
) -> impl Future<Output = Result<Response<GuardedBody<R>>, E>> + Send
where
    B: FromReplay + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    E: Send + 'static,
    F: FnOnce(Request<B>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<R>, E>> + Send + 'static,
{
    async move {
        let named = match keyed.named(&parts) {
            Ok(named) => named,
            Err(answer) => return Ok(answer.map(GuardedBody::replay)),
        };
        let limit = keyed.filter.0.web.max_body_bytes;
        let collected = collect(body, limit, || keyed.hasher(&parts)).await;
        let asker = Asker { keyed, parts, awaited, run };
        let begun = match attempt(asker, named, collected) {
            Attempt::Answered(answer) => return Ok(answer.map(GuardedBody::replay)),
            Attempt::Started(started) => Ok(started),
            Attempt::Asking(asking) => Err(asking),
        };
        let begun = match begun {
            Ok(started) => Ok(started),
            Err(asking) => asking.await,
        };
        let Started { mut action, filter } = match begun {
            Ok(started) => started,
            Err(answer) => return Ok(answer.map(GuardedBody::replay)),
        };
        // Nothing is awaited between the grant and the spawn, so from here on no drop loses the action. It is polled once
        // in place: a drop cannot fall into a poll, so an action that ends in its first one needs no task. Whatever waits
        // for something goes on in a task of its own, of which this future is only a spectator (HTTP-12).
        if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(action.as_mut().poll(cx))).await {
            return result;
        }
        // The first spawn on this path: replays and refusals never pay for one.
        match tokio::spawn(action).await {
            Ok(result) => result,
            Err(gone) => match gone.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime is going down, and dropped the task.
                Err(_) => Ok(filter.gone().map(GuardedBody::replay)),
            },
        }
    }
}

/// Whose the request is (step 5).
struct Named {
    scope: Scope,
    caller: Option<String>,
}

/// Everything of an admitted request but its body.
struct Asker<F> {
    keyed: Keyed,
    parts: Box<Parts>,
    awaited: Option<Box<Awaited>>,
    run: F,
}

/// A granted request's action, not polled yet.
struct Started<R, E> {
    action: Running<R, E>,
    filter: IdempotencyFilter,
}

/// How a request whose body is whole went on.
enum Attempt<R, E> {
    /// The answer, without a run.
    Answered(Response<ReplayBody>),
    Started(Started<R, E>),
    /// The store is being asked.
    Asking(Asking<R, E>),
}

/// On the heap: a replay from a store at hand has none.
type Asking<R, E> = Pin<Box<dyn Future<Output = Result<Started<R, E>, Box<Response<ReplayBody>>>> + Send>>;

/// Steps 7 to 10: fingerprint, acquire, and what follows from its answer.
fn attempt<B, R, E, F, Fut>(
    asker: Asker<F>,
    named: Named,
    collected: Result<Collected, CollectError>,
) -> Attempt<R, E>
where
    B: FromReplay + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    E: Send + 'static,
    F: FnOnce(Request<B>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<R>, E>> + Send + 'static,
{
    let prepared = match asker.keyed.prepare(&asker.parts, named, collected) {
        Ok(prepared) => prepared,
        Err(answer) => return Attempt::Answered(answer),
    };
    match asker.keyed.filter.0.engine.try_acquire_tracked_now(&prepared.ctx) {
        Some(Ok(Acquisition::Granted(held))) => Attempt::Started(asker.start(prepared, held)),
        Some(other) => Attempt::Answered(asker.judge(&prepared).answer(other)),
        None => Attempt::Asking(Box::pin(async move {
            match asker.keyed.filter.0.engine.try_acquire_tracked(&prepared.ctx).await {
                Ok(Acquisition::Granted(held)) => Ok(asker.start(prepared, held)),
                other => Err(Box::new(asker.judge(&prepared).answer(other))),
            }
        })),
    }
}

impl<F> Asker<F> {
    fn judge<'a>(&'a self, prepared: &'a Prepared) -> Judge<'a> {
        let target = Target::Of(Head::of_parts(&self.parts));
        let asked = self.keyed.asked(&self.parts);
        Judge { asked, target, ctx: &prepared.ctx, body: &prepared.body }
    }

    fn start<B, R, E, Fut>(self, prepared: Prepared, held: Held) -> Started<R, E>
    where
        B: FromReplay,
        R: Body<Data = Bytes> + Send + 'static,
        E: Send + 'static,
        F: FnOnce(Request<B>) -> Fut,
        Fut: Future<Output = Result<Response<R>, E>> + Send + 'static,
    {
        let Self { keyed, parts, awaited, run } = self;
        let granted = keyed.grant(*parts, prepared, awaited, held.lease());
        Started { action: start(granted, held, run), filter: keyed.filter }
    }
}

/// A request that is ready to be acquired for.
struct Prepared {
    ctx: IdempotencyContext,
    body: Bytes,
    trailers: Option<Box<HeaderMap>>,
}

impl Keyed {
    /// For a body that comes piece by piece.
    fn hasher(&self, parts: &Parts) -> Option<Hasher> {
        match &self.filter.0.fingerprint {
            Fingerprinter::BuiltIn(algorithm @ (Algorithm::Request | Algorithm::Body)) => {
                let route = Head::of_parts(parts);
                Some(Hasher::new(*algorithm, route.method.as_str(), route.target()))
            }
            Fingerprinter::BuiltIn(Algorithm::Json) | Fingerprinter::Custom(_) => None,
        }
    }

    /// Step 5. An `Err` is the answer.
    fn named(&self, parts: &Parts) -> Result<Named, Response<ReplayBody>> {
        let scope = match self.policy.scope() {
            Some(scope) => scope.into_scope(),
            None => Head::of_parts(parts).default_scope(),
        };
        let scope = scope.map_err(|error| {
            tracing::error!(%error, "no idempotency scope for this route; name one (HTTP-16)");
            self.asked(parts).refuse(Finding::NoScope)
        })?;
        match self.filter.0.caller.as_ref().map(|hook| hook(parts)) {
            None | Some(Caller::Absent) => Ok(Named { scope, caller: None }),
            Some(Caller::Named(caller)) => Ok(Named { scope, caller: Some(caller) }),
            Some(Caller::Refused(response)) => Err(response.map(ReplayBody::from)),
        }
    }

    /// Step 7, and what the engine is asked with. An `Err` is the answer.
    fn prepare(
        &self,
        parts: &Parts,
        Named { scope, caller }: Named,
        collected: Result<Collected, CollectError>,
    ) -> Result<Prepared, Response<ReplayBody>> {
        let Self { filter, policy, key } = self;
        let collected = collected.map_err(|error| {
            self.asked(parts).refuse(match error {
                CollectError::TooLarge(read) => Finding::BodyTooLarge(read),
                CollectError::Unreadable => Finding::BodyUnreadable,
            })
        })?;
        let fingerprint = match (collected.digest, &filter.0.fingerprint) {
            (Some(digest), _) => digest,
            (None, fingerprinter) => {
                let route = Head::of_parts(parts);
                let asked = RequestParts::new(route.method.as_str(), route.target(), &collected.data);
                match fingerprinter {
                    Fingerprinter::BuiltIn(algorithm) => fingerprint(*algorithm, &asked),
                    Fingerprinter::Custom(custom) => {
                        Fingerprint::tagged(custom.algorithm(), &custom.digest(&asked))
                    }
                }
            }
        };
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
            Ok(ctx) => Ok(Prepared { ctx, body: collected.data, trailers: collected.trailers }),
            Err(error) => Err(self.asked(parts).fail(&error)),
        }
    }

    fn asked<'a>(&'a self, parts: &'a Parts) -> Asked<'a> {
        Asked { filter: &self.filter.0, method: &parts.method, version: parts.version }
    }

    /// From here on the request is running: whoever waits for the lease hears of it, and further inside the request is
    /// known to be guarded.
    fn grant<B: FromReplay>(
        &self,
        mut parts: Parts,
        prepared: Prepared,
        awaited: Option<Box<Awaited>>,
        lease: &Lease,
    ) -> (Call, Request<B>) {
        let tx = OnceLock::new();
        if let Some(awaited) = awaited {
            if let Some(slot) = awaited.lease {
                let _ = slot.set(lease.clone());
            }
            if let Some(wanted) = awaited.tx {
                wanted.granted();
                let _ = tx.set(wanted);
            }
        }
        let granted = Guarded(Arc::new(Granted {
            filter: self.filter.clone(),
            route: Route::of(&Head::of_parts(&parts)),
            version: parts.version,
            key: self.key.clone(),
            lease: lease.clone(),
            tx,
        }));
        parts.extensions.insert(granted.clone());
        let Prepared { ctx, body, trailers } = prepared;
        let request = Request::from_parts(parts, B::from_replay(ReplayBody::new(body.clone(), trailers)));
        // The host's smaller default would refuse what was let in here, and behind a layer its 413 would be stored.
        #[cfg(feature = "axum")]
        let request = {
            let mut request = request;
            axum_core::extract::DefaultBodyLimit::max(self.filter.0.web.max_body_bytes).apply(&mut request);
            request
        };
        (Call { granted, ctx, body }, request)
    }
}

/// A call that was granted: everything that records its answer, or judges the record of whoever took over.
pub(crate) struct Call {
    granted: Guarded,
    pub(crate) ctx: IdempotencyContext,
    /// Kept to judge a record under its own algorithm (FP-3). Shared, not copied.
    body: Bytes,
}

impl Call {
    pub(crate) fn filter(&self) -> &Inner {
        &self.granted.0.filter.0
    }

    /// Whether the handler asked for a transaction, opened or not.
    pub(crate) fn has_tx(&self) -> bool {
        self.granted.0.tx.get().is_some()
    }

    /// The handler's transaction, for its end; there is none a second time.
    pub(crate) fn take_tx(&self) -> Taken {
        self.granted.0.tx.get().map_or(Taken::None, |tx| tx.take())
    }

    pub(crate) fn method(&self) -> &Method {
        self.granted.0.route.method()
    }

    pub(crate) fn asked(&self) -> Asked<'_> {
        let Granted { filter, route, version, .. } = &*self.granted.0;
        Asked { filter: &filter.0, method: route.method(), version: *version }
    }

    pub(crate) fn judge(&self) -> Judge<'_> {
        Judge {
            asked: self.asked(),
            target: Target::Known(self.granted.0.route.target()),
            ctx: &self.ctx,
            body: &self.body,
        }
    }
}

impl IdempotencyFilter {
    /// The answer of a runtime that is going down.
    fn gone(&self) -> Response<ReplayBody> {
        let asked = Asked { filter: &self.0, method: &Method::POST, version: Version::HTTP_11 };
        asked.failed(ErrorKind::ShuttingDown)
    }
}
