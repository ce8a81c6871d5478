// SPDX-License-Identifier: MIT OR Apache-2.0
//! For adapters of other web frameworks: the path of a guarded request, for requests of any type
//! and for handlers that stay on the thread of their connection. `retryproof-actix` is one.
//!
//! Not for applications. It promises what the layer promises, and its names may change in any
//! version.
//!
//! [`admit`] decides by the request's head alone; for an [`Admitted`] one [`Admitted::ask`] finds
//! the answer of its key or gets the grant, under which [`Granted::run`] runs the handler. Steps,
//! answers and records are those of the tower layer. A request is never turned into one of the
//! `http` crate, and neither is a replay; the answer of a handler is.

use std::fmt;
use std::future::{Future, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Response, Version};
use http_body::Body;
use retryproof_core::{Error, JoinedEngine, Lease, Recorded, Scope};

use crate::action::Ended;
use crate::ask::{self, Asker, Asking, asked};
use crate::body::{BoxError, GuardedBody, ReplayBody};
use crate::filter::CallerHook;
use crate::filter::IdempotencyFilter;
use crate::guard::{self, Guarded, Key, Keyed, admit_key, seen_through};
use crate::joined::{GuardedTx, TxError};
use crate::judge::Target;
use crate::protocol::key;
use crate::route::{Route, no_route};
use crate::scope::default_scope;

pub use crate::filter::CallerFuture;
pub use crate::policy::AtHand;
pub use crate::protocol::decide::NoTx;
pub use crate::protocol::stored::{COMMON_NAMES, StoredRecord};
pub use crate::response::FrameworkResponse;
pub use crate::then::{Either, Then, then};
pub use crate::waiting::Waiting;

/// What a request's head tells, of whatever type it is.
pub trait RequestHead {
    /// The body length that the request declares; 0 when it does not.
    fn declared_length(&self) -> u64;

    /// Method and version.
    fn asked(&self) -> (Method, Version);

    /// Path and query, as the client sent them.
    fn target(&self) -> &str;

    /// The matched route, if the router told it, in axum's syntax: `{name}`, `{*rest}`. Asked for
    /// only where the policy names no scope.
    fn template(&self) -> Option<String>;

    /// Whether the router found no route.
    fn is_unmatched(&self) -> bool;

    /// The mark of the guarded call that this request is part of, if it is one.
    fn running(&self) -> Option<Running>;

    /// What a [caller hook](crate::FilterBuilder::caller) says of the request, given a head of the
    /// `http` crate.
    fn caller(&self, hook: &dyn Fn(&Parts) -> CallerFuture) -> CallerFuture;
}

/// The name of the header that carries the key.
#[must_use]
pub fn key_header(filter: &IdempotencyFilter) -> &HeaderName {
    &filter.0.key_header
}

/// The filter's limit on a request body, in bytes.
#[must_use]
pub fn max_body_bytes(filter: &IdempotencyFilter) -> usize {
    filter.0.web.max_body_bytes
}

/// What the head of a request decides.
#[derive(Debug)]
pub enum Admission {
    /// Hand the request on, untouched: it is none of the guard's. A mark that its answer carries
    /// belongs to no call.
    Pass,
    /// Hand the request on to the part of a guarded call that stands further inside, whose answer
    /// keeps its mark (HTTP-15).
    Inside,
    /// Answer with this.
    Refused(Response<ReplayBody>),
    /// Go on with [`Admitted::ask`].
    Admitted(Admitted),
}

/// Decides by the request's head: guarded already, key, declared length (HTTP-2 to HTTP-4,
/// HTTP-15). `key_lines` are those of the [key header](key_header).
pub fn admit<'a>(
    filter: &IdempotencyFilter,
    policy: &AtHand,
    head: &impl RequestHead,
    key_lines: impl Iterator<Item = &'a [u8]>,
) -> Admission {
    // An annotated endpoint guards every method; nothing is converted to ask it.
    let is_guarded = !policy.is_layer() || policy.guards(&head.asked().0);
    let running =
        head.running().filter(|Running(outer)| outer.is_told(&head.asked().0, head.target()));
    if !is_guarded && running.is_none() {
        return Admission::Pass;
    }
    let key = key::parse(key_lines);
    let key = key.map(|key| key.map(|key| Key::Decoded(key.into())));
    if running.is_some_and(|Running(outer)| outer.is_under(filter, || key.clone())) {
        if is_guarded {
            filter.0.warn_layered(policy.scope());
        }
        return Admission::Inside;
    }
    if !is_guarded {
        return Admission::Pass;
    }
    let render = |problem: &_| {
        let (method, version) = head.asked();
        filter.0.render_problem(problem, &method, version)
    };
    let is_unmatched = || head.is_unmatched();
    match admit_key(
        filter,
        policy,
        key,
        is_unmatched,
        |limit| head.declared_length() > limit as u64,
        render,
    ) {
        guard::Admission::Pass => Admission::Pass,
        guard::Admission::Inside => Admission::Inside,
        guard::Admission::Refused(answer) => Admission::Refused(answer),
        guard::Admission::Keyed(key) => Admission::Admitted(Admitted(Keyed {
            filter: filter.clone(),
            policy: policy.clone(),
            key,
        })),
    }
}

/// A request with a well-formed key, at a guarded endpoint.
pub struct Admitted(Keyed);

impl Admitted {
    /// For the extractors that run before the grant.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        Waiting::new(self.0.key.clone())
    }

    /// From the admitted request to the answer of its key, or to the grant (HTTP-5). An answer
    /// comes with the head.
    ///
    /// # Cancel safety
    /// Dropped, nothing ran and no lease is left (ACQ-11).
    pub fn ask<H, B, A>(
        self,
        head: H,
        body: B,
    ) -> impl Future<Output = Result<Granted<H>, (A, H)>> + use<H, B, A>
    where
        H: RequestHead,
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
        A: FrameworkResponse,
    {
        let (method, version) = head.asked();
        let asking = asked(Asker { keyed: self.0, head: Told { head, method, version } }, body);
        then(asking, |asked| {
            ready(asked.map(Granted).map_err(|(answer, told)| (answer, told.head)))
        })
    }
}

/// The head of another framework's request.
struct Told<H> {
    head: H,
    method: Method,
    version: Version,
}

impl<H: RequestHead> Asking for Told<H> {
    fn method(&self) -> &Method {
        &self.method
    }

    fn version(&self) -> Version {
        self.version
    }

    fn target(&self) -> Target<'_> {
        Target::Known(self.head.target())
    }

    fn default_scope(&self) -> Result<Scope, Error> {
        let template = self.head.template().ok_or_else(no_route)?;
        Scope::new(default_scope(self.method.as_str(), &template))
    }

    fn caller(&self, hook: &CallerHook) -> CallerFuture {
        self.head.caller(hook)
    }

    fn route(&self) -> Route {
        Route::told(&self.method, self.head.target())
    }
}

/// A request whose lease was granted.
///
/// Dropped, nothing ran, and the key is free when the lease has run out: so nothing is awaited
/// between the grant and [`run`](Self::run).
#[must_use]
pub struct Granted<H>(Box<ask::Granted<Told<H>>>);

impl<H: RequestHead> Granted<H> {
    /// Runs the handler to the answer of its key. `run` is called with the head, the mark of the
    /// call and the bytes of the body; from its first wait on the action has a task of its own on
    /// this thread (HTTP-12).
    ///
    /// # Cancel safety
    /// Dropped, the action goes on, once it was polled.
    ///
    /// # Panics
    /// A panic of the action resumes here after its lease was released (HTTP-7). Outside of a
    /// `LocalSet`, an action that waits cannot be spawned, and panics.
    pub fn run<R, E, F, Fut>(
        self,
        waiting: Option<&Waiting>,
        run: F,
    ) -> impl Future<Output = Result<Ran<R>, E>> + use<H, R, E, F, Fut>
    where
        H: 'static,
        R: Body<Data = Bytes> + 'static,
        E: 'static,
        F: FnOnce(H, Running, Bytes) -> Fut + 'static,
        Fut: Future<Output = Result<Response<R>, E>> + 'static,
    {
        let (filter, awaited) = (self.0.filter(), waiting.and_then(Waiting::awaited));
        let action = self.0.start(awaited, move |told: Told<H>, granted, body, _| {
            run(told.head, Running(granted), body)
        });
        seen_through(action, filter, tokio::task::spawn_local)
    }
}

/// The answer of a granted call.
#[derive(Debug)]
pub struct Ran<R> {
    /// The handler's, or one in its place.
    pub response: Response<GuardedBody<R>>,
    /// Whether it is the handler's.
    pub is_handlers: bool,
    /// What of the handler's answer was recorded (CMP-4); `None` where nothing was to be, or the
    /// answer is not the handler's.
    pub recorded: Option<Recorded>,
}

impl<R> Ended<R> for Ran<R> {
    fn of(response: Response<GuardedBody<R>>, recorded: Option<Recorded>) -> Self {
        Self { response, is_handlers: true, recorded }
    }

    fn instead(answer: Response<ReplayBody>) -> Self {
        Self { response: answer.map(GuardedBody::replay), is_handlers: false, recorded: None }
    }
}

impl<H> fmt::Debug for Granted<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Granted").finish_non_exhaustive()
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").finish_non_exhaustive()
    }
}

/// A guarded call that was granted.
#[derive(Clone)]
pub struct Running(Guarded);

impl Running {
    /// The client's key, decoded.
    #[must_use]
    pub fn key(&self) -> &str {
        self.0.key().as_str()
    }

    /// Its lease.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        self.0.lease()
    }

    /// Its transaction (CMP-7); `None` when it has one of another type.
    #[must_use]
    pub fn tx<T: Send + 'static>(&self, joined: &JoinedEngine<T>) -> Option<GuardedTx<T>> {
        GuardedTx::of_guarded(&self.0, joined)
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

/// The lease that an extractor waits for.
#[derive(Clone, Debug)]
pub struct LeaseSlot(guard::Slot);

impl LeaseSlot {
    /// The lease; `None` before the grant.
    #[must_use]
    pub fn get(&self) -> Option<&Lease> {
        self.0.get()
    }
}

impl From<&Running> for LeaseSlot {
    fn from(running: &Running) -> Self {
        Self(guard::Slot::new(running.lease().clone().into()))
    }
}

impl Waiting {
    /// The client's key, decoded.
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// The lease, once it is granted.
    #[must_use]
    pub fn lease(&self) -> LeaseSlot {
        LeaseSlot(self.slot())
    }

    /// The transaction, to be begun after the grant (CMP-7); `None` when another argument has one
    /// of another type.
    #[must_use]
    pub fn guarded_tx<T: Send + 'static>(&self, joined: &JoinedEngine<T>) -> Option<GuardedTx<T>> {
        GuardedTx::from_shared(self.tx(|| GuardedTx::unopened(joined)))
    }
}

/// A body that was guarded, for a framework that has bodies of its own.
#[derive(Debug)]
pub enum Pieces<B> {
    /// All there.
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// To be read.
    Streaming(GuardedBody<B>),
}

impl<B> From<GuardedBody<B>> for Pieces<B> {
    fn from(body: GuardedBody<B>) -> Self {
        match body.into_whole() {
            Ok(whole) => whole.into(),
            Err(body) => Self::Streaming(body),
        }
    }
}

impl<B> From<ReplayBody> for Pieces<B> {
    fn from(body: ReplayBody) -> Self {
        let (data, trailers) = body.into_parts();
        Self::Whole(data, trailers)
    }
}

/// The answer to a handler that got no transaction: a problem, marked as unstored by
/// [`Fate`](crate::Fate), and by [`NoTx`] as one that the guard makes anew.
#[must_use]
pub fn tx_answer(error: &TxError) -> Response<Bytes> {
    error.answer()
}
