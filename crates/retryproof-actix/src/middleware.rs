// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Idempotency`]: the guard as a middleware.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::error::InternalError;
use actix_web::http::header::HeaderName;
use actix_web::{Error, HttpMessage as _, HttpRequest};
use bytes::Bytes;
use pin_project_lite::pin_project;
use retryproof_http::adapter::{
    AdmitOutcome, AdmittedRequest, CallMark, GrantedRequest, GuardPolicy, acquire, admit,
    max_body_bytes,
};
use retryproof_http::{IdempotencyFilter, Policy};

use crate::answer::{ActixResponse, KeptHead, mark_unguarded, of_filter, take_fate};
use crate::body::PayloadBody;
use crate::head::{ActixHead, key_name};
use crate::limits::Limits;
use crate::then::then;

/// Guards the wrapped service under one policy:
/// `web::resource("/refunds").wrap(Idempotency::new(&filter, REFUNDS))`.
///
/// Wrap the resource whose handlers you want to guard. Wrapping a scope or an app guards every
/// resource in it. GET, HEAD, OPTIONS and TRACE pass unguarded, unless [`Policy::methods`] names
/// them. Requests that match no resource also pass unguarded, unless [`Policy::with_unmatched`] is
/// set. A 405 from actix's router is not stored (HTTP-1). The guard records the responses of
/// everything inside the middleware; see [the order of middleware](crate#the-order-of-middleware).
/// A handler's extractors run inside the middleware, so their rejections are stored, unless the
/// handler is annotated.
///
/// The guard checks the body against the filter's limit. It therefore raises actix's smaller
/// default limits for `web::Bytes`, `String`, `web::Json` and `web::Form` to the filter's limit,
/// unless the app sets its own.
///
/// If an outer middleware holds a clone of the `HttpRequest`, the guard cannot raise the limits and
/// logs one warning. The reason is that actix panics if data is added to a request that has a
/// second handle. The guard catches this panic, but the panic hook prints it, and a program built
/// with `panic = "abort"` ends. To avoid the panic, set the limits in the app
/// (`.app_data(web::PayloadConfig::new(..))`).
#[derive(Clone)]
pub struct Idempotency {
    filter: IdempotencyFilter,
    policy: Policy,
}

impl Idempotency {
    /// Creates a guard with this policy.
    #[must_use]
    pub fn new(filter: &IdempotencyFilter, policy: Policy) -> Self {
        Self { filter: filter.clone(), policy }
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
            policy: GuardPolicy::layer(&self.filter, self.policy),
        }))
    }
}

/// A guarded service in one actix worker.
pub struct IdempotencyService<S> {
    service: Rc<S>,
    filter: IdempotencyFilter,
    policy: GuardPolicy,
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
        let (request, payload) = request.into_parts();
        let mut head = ActixHead::new(request);
        let length = || head.declared_length();
        let outcome = admit(&self.filter, &self.policy, &head, length, head.lines(&self.key));
        let is_outermost = !matches!(outcome, AdmitOutcome::Inside);
        match outcome {
            AdmitOutcome::PassThrough | AdmitOutcome::Inside => {
                let request = ServiceRequest::from_parts(head.request, payload);
                Answering::Passed { future: self.service.call(request), is_outermost }
            }
            AdmitOutcome::Refused(response) => {
                let response = ServiceResponse::new(head.request, of_filter(response));
                Answering::Answered { response: Some(response) }
            }
            AdmitOutcome::Admitted(admitted) => {
                let known = head.length();
                // If the length is known, the limits are raised before the grant.
                if let Some(length) = known {
                    head.request = self.limits.lifted(head.request, length);
                }
                let body = PayloadBody { payload, declared: head.declared_length() };
                let service = Rc::clone(&self.service);
                // If the length is unknown, the limits are raised after the body is read.
                let limits = known.is_none().then(|| Rc::clone(&self.limits));
                Answering::Guarded {
                    future: Box::pin(guarded(admitted, head, body, service, limits)),
                }
            }
        }
    }
}

/// The request and the response head that the service returned. In actix, only one part holds the
/// request at a time: the guard before the grant, then the service, then the guard again.
#[derive(Default)]
struct ReturnedRequest {
    request: Cell<Option<HttpRequest>>,
    kept: KeptHead,
}

/// Acquires the lease, then runs the service.
#[expect(clippy::manual_async_fn, reason = "the future of an `async fn` would be larger")]
fn guarded<S, B>(
    admitted: AdmittedRequest,
    mut head: ActixHead,
    body: PayloadBody,
    service: Rc<S>,
    limits: Option<Rc<Limits>>,
) -> impl Future<Output = Result<ServiceResponse, Error>>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    async move {
        let granted = match acquire(&admitted, &mut head, body).await {
            Ok(granted) => granted,
            Err(ActixResponse(response)) => {
                return Ok(ServiceResponse::new(head.request, response));
            }
        };
        run(granted, admitted, head, service, limits).await
    }
}

fn run<S, B>(
    granted: Box<GrantedRequest>,
    admitted: AdmittedRequest,
    head: ActixHead,
    service: Rc<S>,
    limits: Option<Rc<Limits>>,
) -> impl Future<Output = Result<ServiceResponse, Error>>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    let returned = Rc::new(ReturnedRequest::default());
    let inside = Rc::clone(&returned);
    let running = granted.run_local(
        admitted,
        head,
        None,
        move |ActixHead { mut request, .. }: ActixHead, mark, data: Bytes| {
            request.extensions_mut().insert::<CallMark>(mark);
            if let Some(limits) = limits {
                request = limits.lifted(request, data.len());
            }
            let calling = service.call(ServiceRequest::from_parts(request, Payload::from(data)));
            async move {
                let (request, response) = calling.await?.into_parts();
                inside.request.set(Some(request));
                Ok::<_, Error>(inside.kept.split(response))
            }
        },
    );
    then(running, move |result| {
        ready(result.and_then(|response| {
            let response = returned.kept.join(response);
            match returned.request.take() {
                Some(request) => Ok(ServiceResponse::new(request, response)),
                // The worker is shutting down, and has dropped the call together with its request.
                None => {
                    Err(InternalError::from_response("the worker is shutting down", response)
                        .into())
                }
            }
        }))
    })
}

pin_project! {
    /// The future of [`IdempotencyService`]. Only the future of a guarded request is boxed.
    ///
    /// If the future of a guarded request is dropped before the grant, the wrapped service is not
    /// called. If it is dropped later, the handler continues in its own task (HTTP-12). An
    /// unguarded request has no such task, so its handler is dropped with the future.
    #[project = AnsweringProjection]
    pub enum Answering<F> {
        #[doc(hidden)]
        Passed { #[pin] future: F, is_outermost: bool },
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
            AnsweringProjection::Passed { future, is_outermost } => {
                ready!(future.poll(cx)).map(|mut response| {
                    if *is_outermost {
                        take_fate(response.response_mut());
                        mark_unguarded(response.response_mut());
                    }
                    response.map_into_left_body()
                })
            }
            AnsweringProjection::Answered { response } => match response.take() {
                Some(response) => Ok(response.map_into_right_body()),
                // The future was polled again after it had returned the response.
                None => return Poll::Pending,
            },
            AnsweringProjection::Guarded { future } => {
                ready!(future.as_mut().poll(cx)).map(ServiceResponse::map_into_right_body)
            }
        })
    }
}
