// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs an annotated handler under the guard (ANN-3, ANN-6).
//!
//! `#[idempotent(http)]` turns a handler into a tuple struct that holds the filter and implements
//! actix's `Handler`. `.to(pay(filter))` mounts the guarded handler, and there is no way to mount
//! it without a guard. The struct takes the request, and extracts the function's arguments itself.

use std::any::TypeId;
use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, Ready, poll_fn, ready};
use std::pin::{Pin, pin};
use std::rc::Rc;

use actix_web::dev::{Payload, RequestHead};
use actix_web::{FromRequest, HttpMessage as _, HttpRequest};
use bytes::Bytes;
use retryproof_http::adapter::{
    AdmitOutcome, AdmittedRequest, CallMark, GrantedRequest, GuardPolicy, PreGrant, acquire, admit,
};
use retryproof_http::{AnswerFate, IdempotencyFilter, Policy};

pub use actix_web::{Handler, HttpResponse, Responder};

use crate::answer::{ActixResponse, KeptHead, mark_unguarded, of_filter, take_fate};
use crate::body::{DeferredPayload, PayloadBody, PayloadCell};
use crate::fate::WithFate as _;
use crate::head::{ActixHead, key_name};
use crate::then::{Either, then};

/// The future of an annotated handler.
pub type EndpointFuture = Pin<Box<dyn Future<Output = HttpResponse>>>;

/// The whole request. An annotated handler takes the request from actix, and extracts the
/// function's arguments itself.
#[derive(Debug)]
pub struct EndpointRequest {
    request: HttpRequest,
    payload: HiddenPayload,
}

/// A payload whose `Debug` output shows none of its bytes (ID-4).
struct HiddenPayload(Payload);

impl std::fmt::Debug for HiddenPayload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HiddenPayload")
    }
}

impl FromRequest for EndpointRequest {
    type Error = actix_web::Error;
    type Future = Ready<Result<Self, Self::Error>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        ready(Ok(Self { request: request.clone(), payload: HiddenPayload(payload.take()) }))
    }
}

/// An argument of the handler. If its extractor reads the body, the argument is extracted after the
/// grant; otherwise it is extracted before the grant.
///
/// actix lends the payload to an extractor for a single call, so an extractor that reads the body
/// must take the payload during that call. `early` recognises such an extractor by the payload that
/// it took, whatever its position among the arguments.
#[doc(hidden)]
pub enum Argument<T: FromRequest> {
    Now(T),
    Later(T::Future),
    /// One of actix's extractors for the raw body. As in axum, this extractor does not run before
    /// the grant.
    Untouched,
}

/// Whether an argument is one of actix's extractors for the raw body. A replay does not need such
/// an argument, and extracting it would cost a buffer.
fn is_body_alone<T: 'static>() -> bool {
    [TypeId::of::<Bytes>(), TypeId::of::<String>()].contains(&TypeId::of::<T>())
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

    async fn late(self, request: &HttpRequest, payload: &mut Payload) -> Result<T, HttpResponse> {
        match self {
            Self::Now(value) => Ok(value),
            Self::Later(extracting) => extracting.await.map_err(rejected),
            Self::Untouched => T::from_request(request, payload).await.map_err(rejected),
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
    message = "`{Self}` is not a valid list of endpoint arguments",
    label = "every argument of an endpoint must be an actix extractor",
    note = "every argument must implement `FromRequest`, and an endpoint can have at most 16 \
            arguments"
)]
pub trait Arguments: Sized + 'static {
    /// The state of the arguments between `early` and `late`.
    #[doc(hidden)]
    type Early: 'static;

    /// Runs the extractors that do not read the body. An `Err` is the rejection.
    #[doc(hidden)]
    fn early(
        request: &HttpRequest,
        payload: &mut Payload,
    ) -> impl Future<Output = Result<Self::Early, HttpResponse>>;

    /// Returns the state for `late` if every argument is an extractor for the raw body.
    #[doc(hidden)]
    fn untouched() -> Option<Self::Early>;

    /// Runs the remaining extractors. An `Err` is the rejection.
    #[doc(hidden)]
    fn late(
        early: Self::Early,
        request: &HttpRequest,
        payload: &mut Payload,
    ) -> impl Future<Output = Result<Self, HttpResponse>>;
}

macro_rules! arguments {
    ($($name:ident)*) => {
        #[diagnostic::do_not_recommend]
        #[allow(non_snake_case, reason = "each argument is named after its type")]
        #[allow(unused_variables, reason = "the request is unused if there are no arguments")]
        impl<$($name: FromRequest + 'static),*> Arguments for ($($name,)*) {
            type Early = ($(Argument<$name>,)*);

            async fn early(
                request: &HttpRequest, payload: &mut Payload,
            ) -> Result<Self::Early, HttpResponse> {
                Ok(($(Argument::<$name>::early(request, payload).await?,)*))
            }

            fn untouched() -> Option<Self::Early> {
                (true $(&& is_body_alone::<$name>())*).then(|| ($(Argument::<$name>::Untouched,)*))
            }

            async fn late(
                ($($name,)*): Self::Early,
                request: &HttpRequest,
                payload: &mut Payload,
            ) -> Result<Self, HttpResponse> {
                Ok(($($name.late(request, payload).await?,)*))
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

/// Runs an annotated handler under the guard. The attribute expands to a call to this function.
///
/// # Cancel safety
/// If the future of a guarded request is dropped before the grant, the handler does not run. If it
/// is dropped later, the handler continues in its own task (HTTP-12). A request that passes
/// unguarded has no such task, so its handler is dropped with the future.
///
/// # Panics
/// If the handler panics, the guard first ends the lease. The panic then resumes here.
pub fn run_endpoint<Args, Run, Fut, R>(
    filter: &IdempotencyFilter,
    policy: &'static Policy,
    EndpointRequest { request, payload: HiddenPayload(mut payload) }: EndpointRequest,
    run: Run,
) -> EndpointFuture
where
    Args: Arguments,
    Run: FnOnce(Args) -> Fut + 'static,
    Fut: Future<Output = R> + 'static,
    R: Responder + 'static,
{
    let head = ActixHead::new(request);
    let policy = GuardPolicy::Endpoint(policy);
    let key = key_name(filter);
    let outcome = admit(filter, &policy, &head, || head.declared_length(), head.lines(&key));
    let is_outermost = !matches!(outcome, AdmitOutcome::Inside);
    match outcome {
        AdmitOutcome::Refused(response) => Box::pin(ready(of_filter(response))),
        AdmitOutcome::PassThrough | AdmitOutcome::Inside => Box::pin(async move {
            let request = head.request;
            let args = match Args::early(&request, &mut payload).await {
                Ok(early) => Args::late(early, &request, &mut payload).await,
                Err(rejection) => Err(rejection),
            };
            let mut response = match args {
                Ok(args) => run(args).await.respond_to(&request).map_into_boxed_body(),
                Err(rejection) => rejection.with_fate(AnswerFate::Release), // nothing ran (ANN-6)
            };
            if is_outermost {
                take_fate(&mut response);
                mark_unguarded(&mut response);
            }
            response
        }),
        AdmitOutcome::Admitted(admitted) => {
            let body = PayloadBody { payload, declared: head.declared_length() };
            match Args::untouched() {
                Some(early) => Box::pin(acquire_and_run::<Args, _, _, _>(
                    admitted, head, body, None, early, run,
                )),
                None => Box::pin(guarded::<Args, _, _, _>(admitted, head, body, run)),
            }
        }
    }
}

/// Extracts the arguments, then acquires the lease and runs the handler. `then` keeps the future
/// small, because both stages use the same space.
fn guarded<Args, Run, Fut, R>(
    admitted: AdmittedRequest,
    head: ActixHead,
    body: PayloadBody,
    handler: Run,
) -> impl Future<Output = HttpResponse>
where
    Args: Arguments,
    Run: FnOnce(Args) -> Fut + 'static,
    Fut: Future<Output = R> + 'static,
    R: Responder + 'static,
{
    let context = Rc::new(ExtractionContext {
        pre_grant: admitted.pre_grant(),
        of: std::ptr::from_ref(head.request.head()),
        payload: PayloadCell::default(),
    });
    let extracting = {
        let context = Rc::clone(&context);
        async move {
            let mut payload = DeferredPayload(Rc::clone(&context)).into_payload();
            let extracted = {
                let mut extracting = pin!(Args::early(&head.request, &mut payload));
                poll_fn(|cx| context.while_extracting(|| extracting.as_mut().poll(cx))).await
            };
            extracted.map(|early| (early, head))
        }
    };
    then(extracting, move |extracted| {
        let (early, head) = match extracted {
            Ok(extracted) => extracted,
            Err(mut rejection) => {
                take_fate(&mut rejection);
                mark_unguarded(&mut rejection);
                return Either::rare(ready(rejection));
            }
        };
        Either::usual(acquire_and_run::<Args, _, _, _>(
            admitted,
            head,
            body,
            Some(context),
            early,
            handler,
        ))
    })
}

#[expect(clippy::manual_async_fn, reason = "the future of an `async fn` would be larger")]
fn acquire_and_run<Args, Run, Fut, R>(
    admitted: AdmittedRequest,
    mut head: ActixHead,
    body: PayloadBody,
    context: Option<Rc<ExtractionContext>>,
    early: Args::Early,
    handler: Run,
) -> impl Future<Output = HttpResponse>
where
    Args: Arguments,
    Run: FnOnce(Args) -> Fut + 'static,
    Fut: Future<Output = R> + 'static,
    R: Responder + 'static,
{
    async move {
        let granted = match acquire(&admitted, &mut head, body).await {
            Ok(granted) => granted,
            Err(ActixResponse(response)) => return response,
        };
        run(granted, admitted, head, context, early, handler).await
    }
}

fn run<Args, Run, Fut, R>(
    granted: Box<GrantedRequest>,
    admitted: AdmittedRequest,
    head: ActixHead,
    context: Option<Rc<ExtractionContext>>,
    early: Args::Early,
    handler: Run,
) -> impl Future<Output = HttpResponse>
where
    Args: Arguments,
    Run: FnOnce(Args) -> Fut + 'static,
    Fut: Future<Output = R> + 'static,
    R: Responder + 'static,
{
    let kept = Rc::new(KeptHead::default());
    let (inside, for_payload) = (Rc::clone(&kept), context.clone());
    let handle = move |ActixHead { request, .. }: ActixHead, mark, data| {
        request.extensions_mut().insert::<CallMark>(mark);
        let mut payload = match for_payload {
            Some(context) => {
                context.payload.fill(data);
                Payload::None
            }
            None => Payload::from(data),
        };
        async move {
            let response = match Args::late(early, &request, &mut payload).await {
                Ok(args) => handler(args).await.respond_to(&request).map_into_boxed_body(),
                // The handler did not run, so free the key (ANN-6).
                Err(rejection) => rejection.with_fate(AnswerFate::Release),
            };
            Ok::<_, Infallible>(inside.split(response))
        }
    };
    let pre_grant = context.as_ref().map(|context| &context.pre_grant);
    let running = granted.run_local(admitted, head, pre_grant, handle);
    then(running, move |Ok(response)| ready(kept.join(response)))
}

/// The state that a call shares with its extractors before the grant.
pub(crate) struct ExtractionContext {
    pub(crate) pre_grant: PreGrant,
    /// The address of the request's head, which identifies the request.
    of: *const RequestHead,
    payload: PayloadCell,
}

thread_local! {
    /// The context of the call whose arguments are being extracted. Extractors need the context,
    /// because before the grant, the request's extensions do not show that the request is guarded.
    static EXTRACTING: RefCell<Option<Rc<ExtractionContext>>> = const { RefCell::new(None) };
}

/// Restores the outer context on drop, even if an extractor panics.
struct RestoreContext(Option<Rc<ExtractionContext>>);

impl Drop for RestoreContext {
    fn drop(&mut self) {
        EXTRACTING.set(self.0.take());
    }
}

impl ExtractionContext {
    /// Sets the context while `extract` runs, so that extractors can get it with [`of`](Self::of).
    fn while_extracting<T>(self: &Rc<Self>, extract: impl FnOnce() -> T) -> T {
        let _outer = RestoreContext(EXTRACTING.replace(Some(Rc::clone(self))));
        extract()
    }

    /// Returns the context of this request, if its arguments are being extracted on this thread.
    pub(crate) fn of(request: &HttpRequest) -> Option<Rc<Self>> {
        EXTRACTING.with_borrow(|context| {
            context.as_ref().filter(|context| std::ptr::eq(context.of, request.head())).cloned()
        })
    }
}

impl AsRef<PayloadCell> for ExtractionContext {
    fn as_ref(&self) -> &PayloadCell {
        &self.payload
    }
}
