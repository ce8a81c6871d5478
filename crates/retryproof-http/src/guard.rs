// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single path that layer and annotated handler use: from a request to the one answer of its
//! key.
//!
//! Order of steps: already guarded? key, declared length ([`admit`]); then, after an annotated
//! endpoint has extracted its arguments, scope and caller, body, fingerprint, acquire, and only
//! after a grant the action's own task ([`guarded`], whose steps 5 to 10 are in `ask.rs`). Nothing
//! before the grant spawns, and every answer other than a grant leaves nothing behind.

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
use retryproof_core::{ErrorKind, IdempotencyContext, Lease};
use tokio::task::JoinHandle;

use crate::action::Ended;
use crate::ask::{Asker, asked};
use crate::body::{BoxError, FromReplay, GuardedBody, ReplayBody, declares_more};
use crate::filter::{IdempotencyFilter, Inner};
use crate::joined::{HandlerTx, Taken};
use crate::judge::{Asked, Judge, Target};
use crate::policy::AtHand;
use crate::protocol::decide::NoTx;
use crate::protocol::decide::{Decision, Finding, OversizeBody, decide};
use crate::protocol::key::{self, KeyError};
use crate::protocol::problem::Problem;
use crate::route::{Head, Route};

/// A request extension of the running action: this very route is guarded already (HTTP-15), under
/// this key and this lease. A replay has no use for it, and never makes one.
#[derive(Clone)]
pub(crate) struct Guarded(Arc<Granted>);

struct Granted {
    filter: IdempotencyFilter,
    route: Route,
    version: Version,
    key: Key,
    lease: Lease,
    /// Behind a layer, whose router may answer in the handler's place (HTTP-1).
    layered: bool,
    /// Made by the handler that wants one (CMP-7).
    tx: OnceLock<Arc<dyn HandlerTx>>,
}

impl Guarded {
    /// Whether a request is still the guarded one, seen further inside.
    pub(crate) fn is_at(&self, head: &Head<'_>) -> bool {
        self.0.route.is_that_of(head)
    }

    /// The transaction of the call, made by `make` if there is none yet.
    pub(crate) fn tx(&self, make: impl FnOnce() -> Arc<dyn HandlerTx>) -> Arc<dyn HandlerTx> {
        Arc::clone(self.0.tx.get_or_init(make))
    }
}

impl Guarded {
    /// As [`is_at`](Self::is_at), of a request of another framework.
    pub(crate) fn is_told(&self, method: &Method, target: &str) -> bool {
        self.0.route.is_told(method, target)
    }

    /// Whether a request says no other key than the guarded one, where both filters look at one
    /// header: a request that is made in process for the same route, with a key of its own, is a
    /// call of its own.
    pub(crate) fn is_under(
        &self,
        filter: &IdempotencyFilter,
        key: impl FnOnce() -> Result<Option<Key>, KeyError>,
    ) -> bool {
        if self.0.filter.0.key_header != filter.0.key_header {
            return true;
        }
        match key() {
            Ok(Some(key)) => key.as_bytes() == self.0.key.as_bytes(),
            Ok(None) => true,
            Err(_) => false,
        }
    }

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
    /// Hand the request on, untouched: it is none of the guard's.
    Pass,
    /// Hand the request on to the part of a guarded call that stands further inside (HTTP-15).
    Inside,
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

/// The client's key, decoded: in most cases a part of the header line, which is shared and not
/// copied.
#[derive(Clone)]
pub(crate) enum Key {
    Line { line: HeaderValue, start: usize, end: usize },
    Decoded(Arc<str>),
}

impl Key {
    /// The key of a request; `None` when it has no line of the key header.
    fn of(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Self>, KeyError> {
        let mut lines = headers.get_all(name).iter();
        let first = lines.next();
        let key = key::parse(first.into_iter().chain(lines).map(HeaderValue::as_bytes))?;
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

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Line { line, start, end } => {
                line.as_bytes().get(*start..*end).unwrap_or_default()
            }
            Self::Decoded(key) => key.as_bytes(),
        }
    }
}

/// Steps 1 to 3: a request for the guard, and not guarded already; key, declared length.
pub(crate) fn admit<B: Body>(
    filter: &IdempotencyFilter,
    policy: &AtHand,
    request: &Request<B>,
) -> Admission {
    let is_guarded = policy.guards(request.method());
    if let Some(outer) = request.extensions().get::<Guarded>()
        && outer.is_at(&Head::of(request))
        && outer.is_under(filter, || Key::of(request.headers(), &filter.0.key_header))
    {
        if is_guarded {
            filter.0.warn_layered(policy.scope());
        }
        return Admission::Inside;
    }
    if !is_guarded {
        return Admission::Pass;
    }
    admit_key(
        filter,
        policy,
        Key::of(request.headers(), &filter.0.key_header),
        || Head::of(request).is_unmatched(),
        |limit| declares_more(request.body(), limit),
        |problem| filter.0.render_problem(problem, request.method(), request.version()),
    )
}

/// Steps 2 and 3, of whatever kind the request is.
pub(crate) fn admit_key(
    filter: &IdempotencyFilter,
    policy: &AtHand,
    key: Result<Option<Key>, KeyError>,
    is_unmatched: impl FnOnce() -> bool,
    declares_more_than: impl FnOnce(usize) -> bool,
    render: impl FnOnce(&Problem) -> Response<ReplayBody>,
) -> Admission {
    let inner = &filter.0;
    let is_optional = matches!(key, Ok(None)) && !inner.web.required;
    if !is_optional && policy.passes_unmatched() && is_unmatched() {
        if let (Some(scope), Ok(Some(_))) = (policy.scope(), &key) {
            inner.warn_unmatched(scope);
        }
        return Admission::Pass;
    }
    let finding = match key {
        Ok(Some(key)) if !declares_more_than(inner.web.max_body_bytes) => {
            return Admission::Keyed(key);
        }
        Ok(Some(_)) => {
            Finding::BodyTooLarge { read: OversizeBody::Declared, limit: inner.web.max_body_bytes }
        }
        Ok(None) => Finding::NoKey,
        Err(why) => Finding::BadKey(why),
    };
    match decide(finding, &inner.settings()) {
        Decision::Refuse(problem) => Admission::Refused(render(&problem)),
        Decision::Pass => Admission::Pass,
    }
}

/// Steps 5 to 11 for a request that was admitted. `run` is the handler; it is called after the
/// grant, with the same bytes again, and from its first wait on it runs on a task of its own
/// (HTTP-5, HTTP-12).
///
/// What waits for nothing, which is all of a replay from a store at hand, is done in functions of
/// their own (`Asker::ask`), and what may wait is on the heap. These functions are blocks rather
/// than `async fn`, which would hold each argument twice: the future of every guarded request is
/// moved several times, and its size is a good part of what one costs.
///
/// # Cancel safety
/// Dropped before the grant, nothing ran and no lease is left (ACQ-11). Dropped later, the action
/// goes on.
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
        let granted = match asked(Asker { keyed, head: parts }, body).await {
            Ok(granted) => granted,
            Err((answer, _)) => return Ok(Response::map(answer, GuardedBody::replay)),
        };
        let filter = granted.filter();
        seen_through(granted.start_request(awaited, run), filter, tokio::spawn).await
    }
}

/// Step 11: what was started, to its end; `spawn` gives it a task of its own.
#[expect(clippy::manual_async_fn, reason = "an `async fn` is larger")]
pub(crate) fn seen_through<A, T, R, E>(
    mut action: Pin<Box<A>>,
    filter: IdempotencyFilter,
    spawn: impl FnOnce(Pin<Box<A>>) -> JoinHandle<A::Output>,
) -> impl Future<Output = A::Output>
where
    A: Future<Output = Result<T, E>>,
    T: Ended<R>,
{
    async move {
        // Nothing is awaited between the grant and the spawn, so from here on no drop loses the
        // action. It is polled once in place: a drop cannot fall into a poll, so an action that
        // ends in its first one needs no task. Whatever waits for something goes on in a task of
        // its own, of which this future is only a spectator (HTTP-12).
        if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(action.as_mut().poll(cx))).await {
            return result;
        }
        // The first spawn on this path: replays and refusals never pay for one.
        match spawn(action).await {
            Ok(result) => result,
            Err(gone) => match gone.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime is going down, and dropped the task.
                Err(_) => Ok(T::instead(filter.gone())),
            },
        }
    }
}

impl Keyed {
    /// From here on the request is running: whoever waits for the lease hears of it.
    pub(crate) fn grant(
        self,
        route: Route,
        version: Version,
        awaited: Option<Box<Awaited>>,
        lease: &Lease,
    ) -> Guarded {
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
        let Self { filter, policy, key } = self;
        let layered = policy.is_layer();
        Guarded(Arc::new(Granted {
            filter,
            route,
            version,
            key,
            lease: lease.clone(),
            layered,
            tx,
        }))
    }
}

/// A call that was granted: everything that records its answer, or judges the record of whoever
/// took over.
pub(crate) struct Call {
    granted: Guarded,
    pub(crate) ctx: IdempotencyContext,
    /// Kept to judge a record under its own algorithm (FP-3). Shared, not copied.
    body: Bytes,
}

impl Call {
    pub(crate) fn new(granted: Guarded, ctx: IdempotencyContext, body: Bytes) -> Self {
        Self { granted, ctx, body }
    }

    pub(crate) fn filter(&self) -> &Inner {
        &self.granted.0.filter.0
    }

    /// Whether a layer guards the call.
    pub(crate) fn is_layered(&self) -> bool {
        self.granted.0.layered
    }

    /// Whether the handler asked for a transaction, opened or not.
    pub(crate) fn has_tx(&self) -> bool {
        self.granted.0.tx.get().is_some()
    }

    /// The handler's transaction, for its end; there is none a second time.
    pub(crate) fn take_tx(&self) -> Taken {
        self.granted.0.tx.get().map_or(Taken::None, |tx| tx.take())
    }

    /// Lets go of the request's bytes.
    pub(crate) fn forget_request(&mut self) {
        self.body = Bytes::new();
    }

    pub(crate) fn method(&self) -> &Method {
        self.granted.0.route.method()
    }

    pub(crate) fn asked(&self) -> Asked<'_> {
        let Granted { filter, route, version, .. } = &*self.granted.0;
        Asked { filter: &filter.0, method: route.method(), version: *version }
    }

    /// The answer to a handler that got no transaction.
    pub(crate) fn no_tx(&self, what: NoTx) -> Response<ReplayBody> {
        self.asked().refuse(Finding::NoTx { what, ticket: self.filter().ticket() })
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
