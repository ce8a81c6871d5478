// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Idempotency`]: the guard as a middleware.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::error::InternalError;
use actix_web::http::header::HeaderName;
use actix_web::{Error, HttpMessage as _, HttpRequest};
use bytes::Bytes;
use pin_project_lite::pin_project;
use retryproof_http::adapter::{
    Admission, Admitted, AtHand, Granted, RequestHead as _, Running, admit, max_body_bytes, then,
};
use retryproof_http::{IdempotencyFilter, Policy};

use crate::answer::{Given, Own, of_filter, take_mark};
use crate::body::Incoming;
use crate::head::{Seen, key_name};
use crate::limits::Limits;

/// Guards what it wraps under one policy:
/// `web::resource("/refunds").wrap(Idempotency::new(&filter, REFUNDS))`.
///
/// Wrap the resource whose handlers are to be guarded; around a scope or an app it guards every
/// resource of it. GET, HEAD, OPTIONS and TRACE pass, and so does what no resource matches, unless
/// [`Policy::methods`] and [`Policy::with_unmatched`] say otherwise; a 405 of actix's router is not
/// stored (HTTP-1). What stands inside of it is recorded: the [crate's
/// page](crate#the-order-of-middleware) says what belongs where. The extractors of a handler are
/// inside, so a rejection of theirs is an answer, and stored; an annotated handler's are not.
///
/// The bodies that it hands on have passed the filter's own limit, so that actix's smaller defaults
/// for `web::Bytes`, `String`, `web::Json` and `web::Form` are lifted to it, unless the app has set
/// some of its own.
///
/// They stay as they are, with one warning, where a middleware outside keeps a clone of the
/// `HttpRequest`: actix lets a request's data be added to by its only handle alone, and panics
/// otherwise, which is caught, but printed by the panic hook; a program whose panics abort ends.
/// Set the limits yourself there (`.app_data(web::PayloadConfig::new(..))`).
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
        let (request, payload) = request.into_parts();
        let mut seen = Seen::new(request);
        let admission = admit(&self.filter, &self.policy, &seen, seen.lines(&self.key));
        let is_outermost = !matches!(admission, Admission::Inside);
        match admission {
            Admission::Pass | Admission::Inside => {
                let request = ServiceRequest::from_parts(seen.request, payload);
                Answering::Passed { future: self.service.call(request), is_outermost }
            }
            Admission::Refused(answer) => {
                let response = ServiceResponse::new(seen.request, of_filter(answer));
                Answering::Answered { response: Some(response) }
            }
            Admission::Admitted(admitted) => {
                let known = seen.length();
                // Before anything is granted, where the length is known by now.
                if let Some(length) = known {
                    seen.request = self.limits.lifted(seen.request, length);
                }
                let body = Incoming { payload, declared: seen.declared_length() };
                let service = Rc::clone(&self.service);
                // To be lifted when the body is there.
                let limits = known.is_none().then(|| Rc::clone(&self.limits));
                Answering::Guarded {
                    future: Box::pin(guarded(admitted, seen, body, service, limits)),
                }
            }
        }
    }
}

/// What the two sides of a granted call share. actix has one owner of a request at a time: the
/// guard before the grant, then the service, then the guard again, for the answer.
#[derive(Default)]
struct Desk {
    request: Cell<Option<HttpRequest>>,
    own: Own,
}

/// In sequence rather than in one block, whose stages would each have room of their own.
fn guarded<S, B>(
    admitted: Admitted,
    seen: Seen,
    body: Incoming,
    service: Rc<S>,
    limits: Option<Rc<Limits>>,
) -> impl Future<Output = Result<ServiceResponse, Error>>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    then(admitted.ask(seen, body), move |asked| async move {
        match asked {
            Ok(granted) => run(granted, service, limits).await,
            Err((Given(response), seen)) => Ok(ServiceResponse::new(seen.request, response)),
        }
    })
}

fn run<S, B>(
    granted: Granted<Seen>,
    service: Rc<S>,
    limits: Option<Rc<Limits>>,
) -> impl Future<Output = Result<ServiceResponse, Error>>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    let desk = Rc::new(Desk::default());
    let inside = Rc::clone(&desk);
    let running = granted.run(None, move |Seen { mut request, .. }: Seen, running, data: Bytes| {
        request.extensions_mut().insert::<Running>(running);
        if let Some(limits) = limits {
            request = limits.lifted(request, data.len());
        }
        let calling = service.call(ServiceRequest::from_parts(request, Payload::from(data)));
        async move {
            let (request, response) = calling.await?.into_parts();
            inside.request.set(Some(request));
            Ok::<_, Error>(inside.own.part(response))
        }
    });
    then(running, move |ran| {
        ready(ran.and_then(|ran| {
            let response = desk.own.join(ran);
            match desk.request.take() {
                Some(request) => Ok(ServiceResponse::new(request, response)),
                // The worker is going down, and dropped the action with its request.
                None => {
                    Err(InternalError::from_response("the worker is going down", response).into())
                }
            }
        }))
    })
}

pin_project! {
    /// The future of [`IdempotencyService`]. What passes is not boxed.
    ///
    /// Dropped before the lease was granted, nothing ran. Dropped later, the handler goes on in its
    /// own task (HTTP-12).
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
                        take_mark(response.response_mut());
                    }
                    response.map_into_left_body()
                })
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
