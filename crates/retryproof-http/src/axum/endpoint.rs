// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stages of an annotated handler: arguments, guard, body argument, function (ANN-3, ANN-6).

use std::any::TypeId;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;

use axum_core::extract::{FromRef, FromRequest, FromRequestParts, Request};
use axum_core::response::{IntoResponse, Response};
use http::request::Parts;
use http_body::Body as _;

use super::extract::PRE_GRANT;
use crate::body::GuardedBody;
use crate::call::PreGrant;
use crate::fate::AnswerFate;
use crate::filter::IdempotencyFilter;
use crate::guard::{AdmitOutcome, admit, guarded};
use crate::policy::{GuardPolicy, Policy};
use crate::protocol::key::ClientKey;
use crate::served::Served;

/// The future of an annotated handler, boxed once, like the futures of axum's own handlers.
pub type EndpointFuture = Pin<Box<dyn Future<Output = Response> + Send + 'static>>;

/// A router state that has an [`IdempotencyFilter`]: the filter itself, or any state that provides
/// a filter through `FromRef`.
/// ```
/// use axum::extract::FromRef;
/// use retryproof_http::{IdempotencyFilter, axum::HasFilter};
///
/// #[derive(Clone)]
/// struct App { filter: IdempotencyFilter }
///
/// // `#[derive(FromRef)]` writes this.
/// impl FromRef<App> for IdempotencyFilter {
///     fn from_ref(app: &App) -> Self {
///         app.filter.clone()
///     }
/// }
///
/// fn is_a_state_of_guarded_endpoints(_: impl HasFilter) {}
/// # fn check(app: App) { is_a_state_of_guarded_endpoints(app) }
/// ```
#[diagnostic::on_unimplemented(
    message = "the state `{Self}` has no `IdempotencyFilter`",
    label = "an endpoint with `#[idempotent(http)]` needs a filter in the router's state",
    note = "derive `FromRef` for the state and give it a field of type `IdempotencyFilter`, or \
         use the filter itself as the state: `.with_state(filter)`"
)]
pub trait HasFilter {
    /// Returns the filter.
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

/// Marks a last argument that needs only the request's head.
#[derive(Debug)]
pub enum ViaParts {}

/// Marks a last argument that reads the body.
#[derive(Debug)]
pub enum ViaRequest {}

/// The last argument of an annotated handler. An argument that reads the body is extracted after
/// the grant. Any other last argument is extracted before the grant, like the other arguments: in
/// `async fn pay(user: User)`, the user is checked before anything is replayed (ANN-6).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an extractor",
    label = "every argument of an endpoint must be an axum extractor, with the body last",
    note = "each argument must implement `FromRequestParts`; the last argument may implement \
            `FromRequest` instead"
)]
pub trait LastArgument<S, M>: Sized + Send + 'static {
    /// The part that is extracted before the grant.
    type Early: Send + 'static;

    /// The rejection of a body argument.
    type Rejection: IntoResponse;

    /// Extracts the part that does not need the body, or returns the rejection as an `Err`.
    #[doc(hidden)]
    fn early(
        parts: &mut Parts,
        state: &S,
    ) -> impl Future<Output = Result<Self::Early, Response>> + Send;

    /// Completes the extraction, from the body if needed, or returns the rejection as an `Err`.
    #[doc(hidden)]
    fn late(
        early: Self::Early,
        request: Request,
        state: &S,
    ) -> impl Future<Output = Result<Self, Self::Rejection>> + Send;
}

#[diagnostic::do_not_recommend]
impl<S, T> LastArgument<S, ViaParts> for T
where
    S: Send + Sync,
    T: FromRequestParts<S> + Send + 'static,
{
    type Early = T;
    type Rejection = Infallible;

    async fn early(parts: &mut Parts, state: &S) -> Result<T, Response> {
        T::from_request_parts(parts, state).await.map_err(IntoResponse::into_response)
    }

    async fn late(early: T, _: Request, _: &S) -> Result<T, Infallible> {
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
    type Rejection = T::Rejection;

    async fn early(_: &mut Parts, _: &S) -> Result<(), Response> {
        Ok(())
    }

    // `late` is not an `async fn`, because the future of an `async fn` would reserve space for the
    // request twice: as its argument, and in the extractor's future.
    fn late(
        (): (),
        request: Request,
        state: &S,
    ) -> impl Future<Output = Result<T, T::Rejection>> + Send {
        T::from_request(request, state)
    }
}

/// Runs an annotated handler under the guard. The attribute `#[idempotent(http)]` expands to a call
/// to this function.
///
/// # Cancel safety
/// If the future is dropped before the grant, nothing has run. If it is dropped later, the handler
/// continues in its own task (HTTP-12).
///
/// # Panics
/// If the handler panics, the guard first ends the lease. The panic then resumes here.
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
        let last = match Last::late(last, request, &state).await {
            Ok(last) => last,
            // The body argument was rejected and the function never ran, so free the key (ANN-6).
            Err(rejection) => return Ok(AnswerFate::Release.mark(rejection.into_response())),
        };
        Ok::<_, Infallible>(run(early, last).await.into_response())
    };
    // Decide the outcome before boxing any future. Each outcome then boxes only its own future,
    // which keeps the box small.
    let (filter, policy) = (state.filter(), GuardPolicy::Endpoint(policy));
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
            let mut response = match extract::<S, M, Early, Last>(&mut parts, &state).await {
                Ok((early, last)) => {
                    let Ok(response) =
                        handle(state, early, last, Request::from_parts(*parts, body)).await;
                    response
                }
                // The function did not run, so the guard outside frees the key (ANN-6).
                Err(rejection) => AnswerFate::Release.mark(rejection),
            };
            if is_outermost {
                AnswerFate::take(response.extensions_mut());
                Served::mark_unguarded(response.extensions_mut());
            }
            response
        }),
        AdmitOutcome::Admitted(admitted) => Box::pin(async move {
            // Keep `extracted` inside this block, because a variable takes up space in the future
            // until its block ends.
            let (early, last, handles) = {
                // Without extractors, no argument can read the key or the lease, so `PRE_GRANT` is
                // not set. An optimised build evaluates this check at compile time.
                let is_bare = TypeId::of::<(Early, Last::Early)>() == TypeId::of::<((), ())>();
                let extracted = if is_bare {
                    (extract::<S, M, Early, Last>(&mut parts, &state).await, None)
                } else {
                    let pre_grant = admitted.pre_grant();
                    // Boxing this future makes the outer future smaller, and thus faster to
                    // allocate.
                    let extracting = Box::pin(PRE_GRANT.scope(pre_grant, async {
                        let extracted = extract::<S, M, Early, Last>(&mut parts, &state).await;
                        (extracted, PRE_GRANT.with(PreGrant::take_handles))
                    }));
                    extracting.await
                };
                match extracted {
                    (Ok((early, last)), handles) => (early, last, handles),
                    (Err(mut rejection), _) => {
                        AnswerFate::take(rejection.extensions_mut());
                        Served::mark_unguarded(rejection.extensions_mut());
                        return rejection;
                    }
                }
            };
            let handler = move |request| handle(state, early, last, request);
            let Ok(response) = guarded(admitted, parts, body, handles, handler).await;
            response.map(GuardedBody::into_axum)
        }),
    }
}

/// Extracts all arguments except the body, or returns the rejection as an `Err`.
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
