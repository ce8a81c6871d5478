// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Idempotency`]: the guard as a middleware.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::error::InternalError;
use actix_web::http::header::{CONTENT_LENGTH, HeaderName};
use actix_web::{Error, HttpMessage as _, HttpRequest};
use http::request::Parts;
use pin_project_lite::pin_project;
use retryproof_http::adapter::{
    Admission, Admitted, AtHand, RequestHead as _, Running, admit, max_body_bytes, needs_fields,
};
use retryproof_http::{IdempotencyFilter, Policy};

use crate::answer::{Own, of_filter};
use crate::body::Incoming;
use crate::caller;
use crate::head::{Head, key_name};
use crate::limits::Limits;

/// Guards what it wraps under one policy: `web::resource("/refunds").wrap(Idempotency::new(&filter, REFUNDS))`.
///
/// Wrap the resource whose handlers are to be guarded; around a scope or an app it guards every method and path of it.
/// What stands inside of it is recorded: the [crate's page](crate#the-order-of-middleware) says what belongs where. The extractors of a
/// handler are inside, so a rejection of theirs is an answer, and stored; an annotated handler's are not.
///
/// The bodies that it hands on have passed the filter's own limit, so that actix's smaller defaults for `web::Bytes`,
/// `String`, `web::Json` and `web::Form` are lifted to it, unless the app has set some of its own.
///
/// They stay as they are, with one warning, where a middleware outside keeps a clone of the `HttpRequest`: actix lets a request's
/// data be added to by its only handle alone, and panics otherwise, which is caught, but printed by the panic hook; a program whose panics
/// abort ends. Set the limits yourself there (`.app_data(web::PayloadConfig::new(..))`).
#[derive(Clone)]
pub struct Idempotency {
    filter: IdempotencyFilter,
    policy: Arc<Policy>,
}

impl Idempotency {
    /// The guard of one resource.
    #[must_use]
    pub fn new(filter: &IdempotencyFilter, policy: Policy) -> Self {
        Self { filter: filter.clone(), policy: Arc::new(policy) }
    }
}

impl fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<S, B> Transform<S, ServiceRequest> for Idempotency
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = Error;
    type Transform = IdempotencyService<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        ready(Ok(IdempotencyService {
            service: Rc::new(service),
            key: key_name(&self.filter).into_owned(),
            limits: Rc::new(Limits::new(max_body_bytes(&self.filter))),
            filter: self.filter.clone(),
            policy: AtHand::Shared(Arc::clone(&self.policy)),
        }))
    }
}

/// A service behind the guard, of one worker.
pub struct IdempotencyService<S> {
    service: Rc<S>,
    filter: IdempotencyFilter,
    policy: AtHand,
    key: HeaderName,
    limits: Rc<Limits>,
}

impl<S> fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService").field("policy", &*self.policy).finish_non_exhaustive()
    }
}

impl<S, B> Service<ServiceRequest> for IdempotencyService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = Error;
    type Future = Answering<S::Future>;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let head =
            Head { request: request.request(), key: &self.key, filter: &self.filter, policy: &self.policy };
        match admit(&self.filter, &self.policy, &head) {
            Admission::Pass => Answering::Passed { future: self.service.call(request) },
            Admission::Refused(answer) => {
                let response = request.into_response(of_filter(answer));
                Answering::Answered { response: Some(response) }
            }
            Admission::Admitted(admitted) => {
                let (parts, declared) = (Box::new(head.parts()), head.declared_length());
                // Before anything is granted, where the length is known by now.
                let known = length(&request);
                let mut request = request;
                if let Some(length) = known {
                    self.limits.lift(&mut request, length);
                }
                let (request, payload) = request.into_parts();
                let call = Call {
                    admitted,
                    by_caller: needs_fields(&self.filter),
                    desk: Rc::new(Desk { request: RefCell::new(Some(request)), own: Own::default() }),
                    service: Rc::clone(&self.service),
                    limits: known.is_none().then(|| Rc::clone(&self.limits)),
                };
                let payload = Incoming::Wire { payload, declared };
                Answering::Guarded { future: Box::pin(call.answer(parts, payload)) }
            }
        }
    }
}

/// What the two sides of a guarded call share. actix has one owner of a request at a time: the guard before the grant, then
/// the service, then the guard again, for the answer.
struct Desk {
    request: RefCell<Option<HttpRequest>>,
    own: Own,
}

struct Call<S> {
    admitted: Admitted,
    by_caller: bool,
    desk: Rc<Desk>,
    service: Rc<S>,
    /// To be lifted when the body is there.
    limits: Option<Rc<Limits>>,
}

impl<S, B> Call<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    /// A block rather than an `async fn`, which would hold each argument twice.
    fn answer(
        self,
        parts: Box<Parts>,
        body: Incoming,
    ) -> impl Future<Output = Result<ServiceResponse, Error>> {
        let Self { admitted, by_caller, desk, service, limits } = self;
        let run = {
            let desk = Rc::clone(&desk);
            move |granted: http::Request<Incoming>| {
                let running = Running::of(&granted);
                let request = desk.request.take();
                let calling = request.map(|request| {
                    if let Some(running) = running {
                        request.extensions_mut().insert(running);
                    }
                    let data = granted.into_body().into_bytes();
                    let length = data.len();
                    let mut request = ServiceRequest::from_parts(request, Payload::from(data));
                    if let Some(limits) = limits {
                        limits.lift(&mut request, length);
                    }
                    service.call(request)
                });
                async move {
                    let Some(calling) = calling else { return Err(lost()) };
                    let (request, response) = calling.await?.into_parts();
                    desk.request.replace(Some(request));
                    Ok(desk.own.part(response))
                }
            }
        };
        async move {
            let guarded = admitted.guard(parts, body, None, run);
            let answer = if by_caller {
                caller::at(Rc::clone(&desk) as Rc<dyn caller::Request>, guarded).await?
            } else {
                guarded.await?
            };
            let response = desk.own.join(answer);
            match desk.request.take() {
                Some(request) => Ok(ServiceResponse::new(request, response)),
                // The worker is going down, and dropped the action with its request.
                None => Err(InternalError::from_response("the worker is going down", response).into()),
            }
        }
    }
}

impl caller::Request for Desk {
    fn look(&self, hook: &mut dyn FnMut(&HttpRequest)) {
        if let Some(request) = &*self.request.borrow() {
            hook(request);
        }
    }
}

/// Of the body, when its head says it.
fn length(request: &ServiceRequest) -> Option<usize> {
    let declared = request.headers().get(CONTENT_LENGTH);
    declared.and_then(|length| length.to_str().ok()?.trim().parse().ok())
}

/// The guard calls the handler once.
fn lost() -> Error {
    actix_web::error::ErrorInternalServerError("the request is not there")
}

pin_project! {
    /// The future of [`IdempotencyService`]. What passes is not boxed.
    ///
    /// Dropped before the lease was granted, nothing ran. Dropped later, the handler goes on in its own task (HTTP-12).
    #[project = AnsweringProjection]
    pub enum Answering<F> {
        #[doc(hidden)]
        Passed { #[pin] future: F },
        #[doc(hidden)]
        Answered { response: Option<ServiceResponse> },
        #[doc(hidden)]
        Guarded { future: Pin<Box<dyn Future<Output = Result<ServiceResponse, Error>>>> },
    }
}

impl<F> fmt::Debug for Answering<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").finish_non_exhaustive()
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<ServiceResponse<B>, Error>>,
{
    type Output = Result<ServiceResponse<EitherBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match self.project() {
            AnsweringProjection::Passed { future } => {
                ready!(future.poll(cx)).map(ServiceResponse::map_into_left_body)
            }
            AnsweringProjection::Answered { response } => match response.take() {
                Some(response) => Ok(response.map_into_right_body()),
                // Polled again after its answer.
                None => return Poll::Pending,
            },
            AnsweringProjection::Guarded { future } => {
                ready!(future.as_mut().poll(cx)).map(ServiceResponse::map_into_right_body)
            }
        })
    }
}
