// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an annotated handler runs through (ANN-3, ANN-6).
//!
//! `#[idempotent(http)]` makes a handler a tuple struct around the filter, which implements actix's `Handler`: `.to(pay(filter))`
//! mounts it guarded, and nothing mounts it otherwise. It asks actix for the request as it came, and extracts the function's
//! arguments itself.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::rc::Rc;

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpMessage as _, HttpRequest};
use http::request::Parts;
use retryproof_http::adapter::{
    Admission, Admitted, AtHand, RequestHead as _, Running, Waiting, admit, needs_fields,
};
use retryproof_http::{AnswerFate, IdempotencyFilter, Policy};

pub use actix_web::{Handler, HttpResponse, Responder};

use crate::answer::{Own, of_filter};
use crate::body::{Deferred, Incoming, Promise};
use crate::caller;
use crate::fate::WithFate as _;
use crate::head::{Head, key_name};

/// The future of an annotated handler.
pub type EndpointFuture = Pin<Box<dyn Future<Output = HttpResponse>>>;

/// A request as it came: what an annotated handler takes instead of the function's arguments.
#[derive(Debug)]
pub struct EndpointRequest {
    request: HttpRequest,
    payload: Body,
}

/// A payload, which shows nothing (ID-4).
struct Body(Payload);

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Body")
    }
}

impl FromRequest for EndpointRequest {
    type Error = actix_web::Error;
    type Future = Ready<Result<Self, Self::Error>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        ready(Ok(Self { request: request.clone(), payload: Body(payload.take()) }))
    }
}

/// An argument: extracted before the grant, or, where it has taken the body, to be extracted after it.
///
/// actix hands an extractor the payload for the time of one call, so one that reads the body has taken it when the call
/// returns; by that it is known, wherever among the arguments it stands.
#[doc(hidden)]
pub enum Argument<T: FromRequest> {
    Now(T),
    Later(T::Future),
}

impl<T: FromRequest> Argument<T> {
    async fn early(request: &HttpRequest, payload: &mut Payload) -> Result<Self, HttpResponse> {
        let was_there = !matches!(payload, Payload::None);
        let extracting = T::from_request(request, payload);
        if was_there && matches!(payload, Payload::None) {
            return Ok(Self::Later(extracting));
        }
        extracting.await.map(Self::Now).map_err(rejected)
    }

    async fn late(self) -> Result<T, HttpResponse> {
        match self {
            Self::Now(value) => Ok(value),
            Self::Later(extracting) => extracting.await.map_err(rejected),
        }
    }
}

impl<T: FromRequest> std::fmt::Debug for Argument<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Argument")
    }
}

fn rejected(error: impl Into<actix_web::Error>) -> HttpResponse {
    HttpResponse::from_error(error)
}

/// The arguments of a handler: a tuple of up to 16 extractors.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what an endpoint takes",
    label = "every argument of an endpoint is an extractor of actix",
    note = "an argument implements `FromRequest`, and there are at most 16"
)]
pub trait Arguments: Sized + 'static {
    /// The same, between the two steps.
    #[doc(hidden)]
    type Early: 'static;

    /// Extracts all that does not read the body; an `Err` is the rejection.
    #[doc(hidden)]
    fn early(
        request: &HttpRequest,
        payload: &mut Payload,
    ) -> impl Future<Output = Result<Self::Early, HttpResponse>>;

    /// Extracts the rest; an `Err` is the rejection.
    #[doc(hidden)]
    fn late(early: Self::Early) -> impl Future<Output = Result<Self, HttpResponse>>;
}

macro_rules! arguments {
    ($($name:ident)*) => {
        #[diagnostic::do_not_recommend]
        #[allow(non_snake_case, reason = "the names of types stand for those of arguments")]
        #[allow(unused_variables, reason = "no arguments, no request")]
        impl<$($name: FromRequest + 'static),*> Arguments for ($($name,)*) {
            type Early = ($(Argument<$name>,)*);

            async fn early(request: &HttpRequest, payload: &mut Payload) -> Result<Self::Early, HttpResponse> {
                Ok(($(Argument::<$name>::early(request, payload).await?,)*))
            }

            async fn late(($($name,)*): Self::Early) -> Result<Self, HttpResponse> {
                Ok(($($name.late().await?,)*))
            }
        }
    };
}

arguments! {}
arguments! { A }
arguments! { A B }
arguments! { A B C }
arguments! { A B C D }
arguments! { A B C D E }
arguments! { A B C D E F }
arguments! { A B C D E F G }
arguments! { A B C D E F G H }
arguments! { A B C D E F G H I }
arguments! { A B C D E F G H I J }
arguments! { A B C D E F G H I J K }
arguments! { A B C D E F G H I J K L }
arguments! { A B C D E F G H I J K L M }
arguments! { A B C D E F G H I J K L M N }
arguments! { A B C D E F G H I J K L M N O }
arguments! { A B C D E F G H I J K L M N O P }

/// Runs an annotated handler under the guard; what the attribute's expansion calls.
///
/// # Cancel safety
/// Dropped before the grant, nothing ran. Dropped later, the handler goes on in its own task (HTTP-12).
///
/// # Panics
/// A panic of the handler resumes here, after its lease was released.
pub fn run_endpoint<Args, Run, Fut, R>(
    filter: &IdempotencyFilter,
    policy: &'static Policy,
    EndpointRequest { request, payload: Body(mut payload) }: EndpointRequest,
    run: Run,
) -> EndpointFuture
where
    Args: Arguments,
    Run: FnOnce(Args) -> Fut + 'static,
    Fut: Future<Output = R> + 'static,
    R: Responder + 'static,
{
    let key = key_name(filter);
    let head = Head { request: &request, key: &key, filter, policy };
    match admit(filter, &AtHand::Constant(policy), &head) {
        Admission::Refused(answer) => Box::pin(ready(of_filter(answer))),
        Admission::Pass => Box::pin(async move {
            let args = match Args::early(&request, &mut payload).await {
                Ok(early) => Args::late(early).await,
                Err(rejection) => Err(rejection),
            };
            match args {
                Ok(args) => run(args).await.respond_to(&request).map_into_boxed_body(),
                Err(rejection) => rejection,
            }
        }),
        Admission::Admitted(admitted) => {
            let body = Incoming::Wire { payload, declared: head.declared_length() };
            let (parts, by_caller) = (Box::new(head.parts()), needs_fields(filter));
            Box::pin(guarded::<Args, _, _, _>(admitted, parts, request, body, by_caller, run))
        }
    }
}

/// A block rather than an `async fn`, which would hold each argument twice.
#[expect(clippy::manual_async_fn, reason = "an `async fn` is larger")]
fn guarded<Args, Run, Fut, R>(
    admitted: Admitted,
    parts: Box<Parts>,
    request: HttpRequest,
    body: Incoming,
    by_caller: bool,
    run: Run,
) -> impl Future<Output = HttpResponse>
where
    Args: Arguments,
    Run: FnOnce(Args) -> Fut + 'static,
    Fut: Future<Output = R> + 'static,
    R: Responder + 'static,
{
    async move {
        let desk = Rc::new(Desk {
            waiting: admitted.waiting(),
            running: OnceCell::new(),
            promise: Promise::default(),
            own: Own::default(),
        });
        request.extensions_mut().insert(Rc::clone(&desk));
        let early = match Args::early(&request, &mut Deferred(Rc::clone(&desk)).into_payload()).await {
            Ok(early) => early,
            Err(rejection) => return rejection,
        };
        let handle = {
            let (request, desk) = (request.clone(), Rc::clone(&desk));
            move |granted: http::Request<Incoming>| {
                if let Some(running) = Running::of(&granted) {
                    let _ = desk.running.set(running);
                }
                desk.promise.fill(granted.into_body().into_bytes());
                async move {
                    let response = match Args::late(early).await {
                        Ok(args) => run(args).await.respond_to(&request).map_into_boxed_body(),
                        // The function never ran, so the key is free again (ANN-6).
                        Err(rejection) => rejection.with_fate(AnswerFate::Release),
                    };
                    Ok::<_, Infallible>(desk.own.part(response))
                }
            }
        };
        let guarded = admitted.guard(parts, body, Some(&desk.waiting), handle);
        let Ok(answer) = if by_caller { caller::at(Rc::new(request), guarded).await } else { guarded.await };
        desk.own.join(answer)
    }
}

/// What the steps of one call share; one of the request's extensions.
pub(crate) struct Desk {
    pub(crate) waiting: Waiting,
    /// From the grant on.
    pub(crate) running: OnceCell<Running>,
    promise: Promise,
    own: Own,
}

impl AsRef<Promise> for Desk {
    fn as_ref(&self) -> &Promise {
        &self.promise
    }
}
