// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard in axum: what an annotated handler runs through, and extractors for the key and the
//! lease.
//!
//! `#[idempotent(http)]` makes a handler a unit struct whose `Handler` implementation calls
//! [`run_endpoint`]; so `post(pay)` is the guarded handler and cannot be anything else (ANN-3). All
//! arguments but the body are extracted before the key is looked up, on every call (ANN-6): an
//! extractor that authenticates runs before a replay too.

use std::any::TypeId;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, ready};
use std::ops::Deref;
use std::pin::Pin;

use axum_core::extract::{FromRef, OptionalFromRequestParts};
use http::request::Parts;
use http_body::Body as _;

pub use axum::handler::Handler;
pub use axum_core::extract::{FromRequest, FromRequestParts, Request};
pub use axum_core::response::{IntoResponse, Response};

use crate::body::GuardedBody;
use crate::call::{CallMark, ClientKey, LeaseCell, PreGrant};
use crate::fate::AnswerFate;
use crate::filter::IdempotencyFilter;
use crate::guard::{AdmitOutcome, admit, guarded};
use crate::policy::{Policy, PolicyRef};
use crate::then::then;

pub(crate) mod limit;
mod tx;

pub use tx::{GuardedTxRejection, HasJoinedEngine};

/// The future of an annotated handler: boxed once, as in axum's own handlers.
pub type EndpointFuture = Pin<Box<dyn Future<Output = Response> + Send + 'static>>;

/// A router state that has an [`IdempotencyFilter`]: every state from which one can be taken by
/// `FromRef`, and the filter itself.
#[diagnostic::on_unimplemented(
    message = "the state `{Self}` has no `IdempotencyFilter`",
    label = "an endpoint with `#[idempotent(http)]` needs a filter in the router's state",
    note = "derive `FromRef` for the state and give it a field of type `IdempotencyFilter`, or \
         use the filter itself as the state: `.with_state(filter)`"
)]
pub trait HasFilter {
    /// The filter.
    fn filter(&self) -> IdempotencyFilter;
}

#[diagnostic::do_not_recommend]
impl<S> HasFilter for S
where
    IdempotencyFilter: FromRef<S>,
{
    fn filter(&self) -> IdempotencyFilter {
        IdempotencyFilter::from_ref(self)
    }
}

/// The last argument needs only the request's head.
#[derive(Debug)]
pub enum ViaParts {}

/// The last argument reads the body.
#[derive(Debug)]
pub enum ViaRequest {}

/// The last argument of an annotated handler. One that reads the body is extracted after the grant;
/// one that does not is extracted before, like the others, so that `async fn pay(user: User)`
/// replays nothing to other users (ANN-6).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an extractor",
    label = "every argument of an endpoint is an axum extractor, and the body comes last",
    note = "an argument implements `FromRequestParts`, the last one `FromRequestParts` or `FromRequest`"
)]
pub trait LastArgument<S, M>: Sized + Send + 'static {
    /// The part that was extracted before the acquire.
    type Early: Send + 'static;

    /// Extracts what needs no body; an `Err` is the rejection.
    #[doc(hidden)]
    fn early(
        parts: &mut Parts,
        state: &S,
    ) -> impl Future<Output = Result<Self::Early, Response>> + Send;

    /// Extracts the rest; an `Err` is the rejection.
    #[doc(hidden)]
    fn late(
        early: Self::Early,
        request: Request,
        state: &S,
    ) -> impl Future<Output = Result<Self, Response>> + Send;
}

#[diagnostic::do_not_recommend]
impl<S, T> LastArgument<S, ViaParts> for T
where
    S: Send + Sync,
    T: FromRequestParts<S> + Send + 'static,
{
    type Early = T;

    async fn early(parts: &mut Parts, state: &S) -> Result<T, Response> {
        T::from_request_parts(parts, state).await.map_err(IntoResponse::into_response)
    }

    async fn late(early: T, _: Request, _: &S) -> Result<T, Response> {
        Ok(early)
    }
}

#[diagnostic::do_not_recommend]
impl<S, T> LastArgument<S, ViaRequest> for T
where
    S: Send + Sync,
    T: FromRequest<S> + Send + 'static,
{
    type Early = ();

    async fn early(_: &mut Parts, _: &S) -> Result<(), Response> {
        Ok(())
    }

    fn late(
        (): (),
        request: Request,
        state: &S,
    ) -> impl Future<Output = Result<T, Response>> + Send {
        let extracting = T::from_request(request, state);
        then(extracting, |extracted| ready(extracted.map_err(IntoResponse::into_response)))
    }
}

/// Runs an annotated handler under the guard. The attribute expands to a call of this.
///
/// # Cancel safety
/// If the future is dropped before the grant, nothing ran. If it is dropped later, the handler goes
/// on in its own task (HTTP-12).
///
/// # Panics
/// A panic of the handler resumes here, after its lease was released.
pub fn run_endpoint<S, M, Early, Last, Run, Fut, R>(
    policy: &'static Policy,
    request: Request,
    state: S,
    run: Run,
) -> EndpointFuture
where
    S: HasFilter + Send + Sync + 'static,
    Early: FromRequestParts<S> + Send + 'static,
    Last: LastArgument<S, M>,
    Run: FnOnce(Early, Last) -> Fut + Send + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoResponse,
{
    let handle = move |state: S, early: Early, last: Last::Early, request: Request| async move {
        Ok::<_, Infallible>(match Last::late(last, request, &state).await {
            Ok(last) => run(early, last).await.into_response(),
            // A rejected body argument: the function never ran, so the key is free again (ANN-6).
            Err(rejection) => AnswerFate::Release.mark(rejection),
        })
    };
    // Decided before anything is boxed, so that the future of each outcome has its own size.
    let (filter, policy) = (state.filter(), PolicyRef::Constant(policy));
    let length = || request.body().size_hint().lower();
    let key = || ClientKey::from_headers(request.headers(), &filter.0.key_header);
    let outcome = admit(&filter, &policy, &request, length, key);
    let is_outermost = !matches!(outcome, AdmitOutcome::Inside);
    let (parts, body) = request.into_parts();
    let mut parts = Box::new(parts);
    match outcome {
        AdmitOutcome::Refused(response) => {
            Box::pin(ready(response.map(axum_core::body::Body::new)))
        }
        AdmitOutcome::PassThrough | AdmitOutcome::Inside => Box::pin(async move {
            match extract::<S, M, Early, Last>(&mut parts, &state).await {
                Ok((early, last)) => {
                    let Ok(mut response) =
                        handle(state, early, last, Request::from_parts(*parts, body)).await;
                    if is_outermost {
                        AnswerFate::take(response.extensions_mut());
                    }
                    response
                }
                Err(rejection) => rejection,
            }
        }),
        AdmitOutcome::Admitted(admitted) => Box::pin(async move {
            // Without extractors nothing can take the key or the lease. The compiler decides it.
            let extracted = if TypeId::of::<(Early, Last::Early)>() == TypeId::of::<((), ())>() {
                (extract::<S, M, Early, Last>(&mut parts, &state).await, None)
            } else {
                let pre_grant = admitted.pre_grant();
                // On the heap, because allocators are faster with the smaller future.
                let extracting = Box::pin(PRE_GRANT.scope(pre_grant, async {
                    let extracted = extract::<S, M, Early, Last>(&mut parts, &state).await;
                    (extracted, PRE_GRANT.with(PreGrant::take_handles))
                }));
                extracting.await
            };
            let (early, last, handles) = match extracted {
                (Ok((early, last)), handles) => (early, last, handles),
                (Err(rejection), _) => return rejection,
            };
            let handler = move |request| handle(state, early, last, request);
            let Ok(response) = guarded(admitted, parts, body, handles, handler).await;
            response.map(GuardedBody::into_axum)
        }),
    }
}

tokio::task_local! {
    /// The request whose arguments are being extracted. Its extensions have no mark before the
    /// grant.
    static PRE_GRANT: PreGrant;
}

/// Extracts all arguments but the body; an `Err` is the rejection.
async fn extract<S, M, Early, Last>(
    parts: &mut Parts,
    state: &S,
) -> Result<(Early, Last::Early), Response>
where
    S: Send + Sync,
    Early: FromRequestParts<S>,
    Last: LastArgument<S, M>,
{
    let early =
        Early::from_request_parts(parts, state).await.map_err(IntoResponse::into_response)?;
    Ok((early, Last::early(parts, state).await?))
}

/// The client's key, in a guarded handler: `key: IdempotencyKey`. It prints as its length (ID-4).
///
/// Where a key is optional (`web.required = false`) take `Option<IdempotencyKey>`; a request
/// without a key is not guarded.
#[derive(Clone)]
pub struct IdempotencyKey(ClientKey);

impl IdempotencyKey {
    /// The key, decoded. It may be personal data or a credential: do not log it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    // An extension may be copied from an outer request, so the request that is being extracted comes
    // first.
    fn of(parts: &Parts) -> Option<Self> {
        let pre_grant = PRE_GRANT.try_with(|pre_grant| pre_grant.client_key().clone()).ok();
        pre_grant
            .or_else(|| parts.extensions.get().map(|mark: &CallMark| mark.client_key().clone()))
            .map(Self)
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.as_str().len())
    }
}

/// The lease of the running handler: `lease: Lease`, then `lease.downstream_key("charge")`,
/// `lease.attempt()`, ….
///
/// Where a key is optional take `Option<Lease>`; a request without a key is not guarded and has
/// none.
///
/// # Panics
/// If it is dereferenced before the lease was granted. Extractors of an annotated endpoint run before
/// that, so a custom extractor must not use it; a handler always may.
#[derive(Clone)]
pub struct Lease(LeaseCell);

impl Lease {
    /// The lease; `None` before it was granted, so never in a handler.
    #[must_use]
    pub fn get(&self) -> Option<&retryproof_core::Lease> {
        self.0.get()
    }

    fn of(parts: &Parts) -> Option<Self> {
        let pre_grant = PRE_GRANT.try_with(PreGrant::lease).ok();
        let running = || parts.extensions.get().map(|mark: &CallMark| LeaseCell::from(mark));
        pre_grant.or_else(running).map(Self)
    }
}

impl Deref for Lease {
    type Target = retryproof_core::Lease;

    fn deref(&self) -> &retryproof_core::Lease {
        self.get().expect("a handler runs after its lease was granted; an extractor before")
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.get()).finish()
    }
}

/// The rejection of a key or a lease extractor when the request is not guarded: 500, because it is a
/// bug of the application.
#[derive(Debug, Clone, Copy)]
pub struct NotGuarded(());

impl fmt::Display for NotGuarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the request is not guarded: it has no key, or the route has neither \
             `#[idempotent(http)]` nor the layer; take the argument as an `Option` where keys \
             are optional",
        )
    }
}

impl std::error::Error for NotGuarded {}

impl IntoResponse for NotGuarded {
    fn into_response(self) -> Response {
        tracing::error!("{self}");
        (http::StatusCode::INTERNAL_SERVER_ERROR, "the request is not guarded").into_response()
    }
}

macro_rules! extractor {
    ($name:ident) => {
        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = NotGuarded;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotGuarded> {
                Self::of(parts).ok_or(NotGuarded(()))
            }
        }

        impl<S: Send + Sync> OptionalFromRequestParts<S> for $name {
            type Rejection = Infallible;

            async fn from_request_parts(
                parts: &mut Parts,
                _: &S,
            ) -> Result<Option<Self>, Infallible> {
                Ok(Self::of(parts))
            }
        }
    };
}

extractor!(IdempotencyKey);
extractor!(Lease);
