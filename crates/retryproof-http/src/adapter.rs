// SPDX-License-Identifier: MIT OR Apache-2.0
//! For adapters of other web frameworks: the path of a guarded request, for requests of any type and for handlers that stay
//! on the thread of their connection. `retryproof-actix` is one.
//!
//! Not for applications. It promises what the layer promises, and its names may change in any version.
//!
//! [`admit`] decides by the request's head alone; an [`Admitted`] one goes through [`Admitted::guard`], whose steps, answers
//! and records are those of the tower layer.

use std::fmt;
use std::future::Future;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Request, Response, Version};
use http_body::Body;
use retryproof_core::{JoinedEngine, Lease};

use crate::answer::to_response;
use crate::body::{BoxError, FromReplay, GuardedBody, ReplayBody};
use crate::filter::IdempotencyFilter;
use crate::guard::{self, Guarded, Key, Keyed, acquired, admit_key, seen_through};
use crate::joined::{GuardedTx, TxError};
use crate::key;
use crate::route::Head;

pub use crate::policy::AtHand;
pub use crate::route::RouteTemplate;
pub use crate::waiting::Waiting;

/// What a request's head tells, of whatever type it is.
pub trait RequestHead {
    /// The lines of the [key header](key_header).
    fn key_lines(&self) -> impl Iterator<Item = &[u8]>;

    /// The body length that the request declares; 0 when it does not.
    fn declared_length(&self) -> u64;

    /// Method and version, for an answer to it.
    fn asked(&self) -> (Method, Version);

    /// The mark of the guarded call that this request is part of, if it is one.
    fn running(&self) -> Option<Running>;

    /// Method, version, and path with query; the fields only where the filter [asks for them](needs_fields), and the
    /// [`RouteTemplate`] only where the policy names no scope.
    fn parts(&self) -> Parts;
}

/// The name of the header that carries the key.
#[must_use]
pub fn key_header(filter: &IdempotencyFilter) -> &HeaderName {
    &filter.0.key_header
}

/// Whether the filter has a hook that looks at the request's fields.
#[must_use]
pub fn needs_fields(filter: &IdempotencyFilter) -> bool {
    filter.0.caller.is_some()
}

/// The filter's limit on a request body, in bytes.
#[must_use]
pub fn max_body_bytes(filter: &IdempotencyFilter) -> usize {
    filter.0.web.max_body_bytes
}

/// What the head of a request decides.
#[derive(Debug)]
pub enum Admission {
    /// Hand the request on, untouched.
    Pass,
    /// Answer with this.
    Refused(Response<ReplayBody>),
    /// Go on with [`Admitted::guard`].
    Admitted(Admitted),
}

/// Decides by the request's head: guarded already, key, declared length (HTTP-2 to HTTP-4, HTTP-15).
pub fn admit(filter: &IdempotencyFilter, policy: &AtHand, head: &impl RequestHead) -> Admission {
    if let Some(Running(outer)) = head.running()
        && outer.is_at(&Head::of_parts(&head.parts()))
    {
        filter.0.warn_layered(policy.scope());
        return Admission::Pass;
    }
    let key = key::parse(head.key_lines());
    let key = key.map(|key| key.map(|key| Key::Decoded(key.into_inner().into())));
    let render = |problem: &_| {
        let (method, version) = head.asked();
        filter.0.render(problem, &method, version)
    };
    match admit_key(filter, key, |limit| head.declared_length() > limit as u64, render) {
        guard::Admission::Pass => Admission::Pass,
        guard::Admission::Refused(answer) => Admission::Refused(answer),
        guard::Admission::Keyed(key) => {
            Admission::Admitted(Admitted(Keyed { filter: filter.clone(), policy: policy.clone(), key }))
        }
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

    /// From the admitted request to the one answer of its key. `run` is the handler; it is called after the grant, with the
    /// bytes of the body and, in the extensions, a [`Running`]; from its first wait on it has a task of its own on this
    /// thread (HTTP-5, HTTP-12).
    ///
    /// # Cancel safety
    /// Dropped before the grant, nothing ran and no lease is left (ACQ-11). Dropped later, the action goes on.
    ///
    /// # Panics
    /// A panic of the action resumes here after its lease was released (HTTP-7). Outside of a `LocalSet`, an action that
    /// waits cannot be spawned, and panics.
    pub fn guard<B, R, E, F, Fut>(
        self,
        parts: Box<Parts>,
        body: B,
        waiting: Option<&Waiting>,
        run: F,
    ) -> impl Future<Output = Result<Response<GuardedBody<R>>, E>> + use<B, R, E, F, Fut>
    where
        B: FromReplay + 'static,
        B::Error: Into<BoxError>,
        R: Body<Data = Bytes> + 'static,
        E: 'static,
        F: FnOnce(Request<B>) -> Fut + 'static,
        Fut: Future<Output = Result<Response<R>, E>> + 'static,
    {
        let awaited = waiting.and_then(Waiting::awaited);
        async move {
            match acquired(self.0, parts, body, awaited, run).await {
                Ok(started) => seen_through(started, tokio::task::spawn_local).await,
                Err(answer) => Ok(answer),
            }
        }
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").finish_non_exhaustive()
    }
}

/// A guarded call that was granted; what [`Admitted::guard`] leaves in the extensions of the handler's request.
#[derive(Clone)]
pub struct Running(Guarded);

impl Running {
    /// That of a request which `guard` has handed to its handler.
    #[must_use]
    pub fn of<B>(request: &Request<B>) -> Option<Self> {
        request.extensions().get().cloned().map(Self)
    }

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

    /// The transaction, to be begun after the grant (CMP-7); `None` when another argument has one of another type.
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

/// The answer to a handler that got no transaction: a problem, marked as unstored by [`Fate`](crate::Fate).
#[must_use]
pub fn tx_answer(error: &TxError) -> Response<Bytes> {
    to_response(&error.problem())
}
