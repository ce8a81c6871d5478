// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the handler of a granted request, and ends its call according to the response's fate:
//! recorded, released or held (HTTP-7, HTTP-12).

use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version, request};
use http_body::Body;
use retryproof_core::ErrorKind;
use retryproof_core::internal::{Panic, catch_panic, catch_panic_of, poll_inside};
use tokio::task::JoinHandle;
use tracing::{Instrument as _, Span};

use crate::body::{FromReplay, ReplayBody};
use crate::call::{
    AdmittedRequest, CallMark, GrantHandles, GrantedRequest, PreparedRequest, RunningCall,
};
use crate::end::{Unrecorded, end_unrecorded};
use crate::fate::AnswerFate;
use crate::filter::{FateHook, IdempotencyFilter};
use crate::head::RequestHead;
use crate::header_map::{SpecialFields, strip_replay_mark};
use crate::record::{ResponseDelivery, record};
use crate::response::{HandlerResponse, ResponseContext};
use crate::served::Served;
use crate::window;

/// Creates the call of a granted request, without polling it. `handler` gets the head, the call's
/// mark, and the body's bytes and trailers.
///
/// The call is boxed before it is spawned, because a task's own allocation is over-aligned, and
/// large over-aligned allocations are slow. The call is `Send` if the handler and its response are.
/// The handler and its response need not be `Send`, because some frameworks keep both on one
/// thread.
pub(crate) fn start_call<H, R, E, F, Fut>(
    mut granted: Box<GrantedRequest>,
    admitted: AdmittedRequest,
    head: H,
    handles: Option<Box<GrantHandles>>,
    handler: F,
) -> Pin<Box<impl Future<Output = Result<HandlerResponse<R>, E>> + use<H, R, E, F, Fut>>>
where
    H: RequestHead,
    R: Body<Data = Bytes>,
    F: FnOnce(H, CallMark, Bytes, Option<Box<HeaderMap>>) -> Fut,
    Fut: Future<Output = Result<Response<R>, E>>,
{
    let lease = &granted.lease;
    let unguarded = match lease.is_guarded() {
        true => None,
        false => Some(lease.shadow().map_or(Served::Unguarded, Served::Shadow)),
    };
    let mark = CallMark::new(admitted, head.route(), head.version(), lease, handles);
    let PreparedRequest { body, trailers, .. } = &mut granted.request;
    let (body, trailers) = (body.clone(), trailers.take());
    let span = std::mem::replace(&mut granted.span, Span::none());
    let mut call = Box::pin(RunningCall::new(mark.clone(), granted));
    let running = async move {
        // Drop the handler's future before the response is recorded, so that recording can reuse
        // its space inside the call's future. Call the handler within the inner `async` block,
        // because the handler can panic before it returns a future.
        let returned = {
            let inside = mark.lease().clone();
            let running = pin!(async move { handler(head, mark, body, trailers).await });
            catch_panic_of(pin!(poll_inside(inside, running))).await
        };
        let ended = 'ended: {
            // Move the response out of the `match` before the await, because a matched value takes
            // up space in the future until the `match` ends.
            let (response, delivery) = match fate_of(call.as_mut(), returned) {
                Ok(recorded) => recorded,
                // Box the future of this rare case, so that the common case takes less space.
                Err(unrecorded) => break 'ended Box::pin(end_unrecorded(call, unrecorded)).await,
            };
            record(call, response, delivery).await
        };
        match unguarded {
            None => ended,
            Some(served) => ended.map(|response| response.unguarded(served)),
        }
    };
    // If the call's span is disabled, run the call inside the current span, which is usually the
    // span of the request.
    let span = if span.is_disabled() { Span::current() } else { span };
    Box::pin(running.instrument(span))
}

/// Adapts a handler that takes a whole request. The request is assembled from its head, the call's
/// mark and the bytes of its body.
pub(crate) fn with_request<B: FromReplay, Fut>(
    handler: impl FnOnce(Request<B>) -> Fut,
) -> impl FnOnce(Box<request::Parts>, CallMark, Bytes, Option<Box<HeaderMap>>) -> Fut {
    move |mut parts, mark, body, trailers| {
        parts.extensions.insert::<CallMark>(mark);
        #[cfg(feature = "axum")]
        let length = body.len();
        let request = Request::from_parts(*parts, B::from_replay(ReplayBody::new(body, trailers)));
        #[cfg(feature = "axum")]
        let request = crate::axum::limit::lift_body_limit(request, length);
        handler(request)
    }
}

/// Runs a call to its end; `spawn` starts a task for a call that has to wait.
///
/// No await comes between the grant and the first poll, so no drop can lose the call. The first
/// poll runs in place. A call that ends in this poll needs no task, because a future cannot be
/// dropped during a poll. A call that has to wait continues in a task, which this future only
/// awaits (HTTP-12).
///
/// # Cancel safety
/// If the future is dropped after its first poll, the call continues.
///
/// # Panics
/// If the handler panics, the guard first ends the lease. The panic then resumes here (HTTP-7).
#[expect(clippy::manual_async_fn, reason = "the future of an `async fn` would be larger")]
pub(crate) fn run_to_end<C, R, E>(
    mut call: Pin<Box<C>>,
    filter: IdempotencyFilter,
    spawn: impl FnOnce(Pin<Box<C>>) -> JoinHandle<C::Output>,
) -> impl Future<Output = C::Output>
where
    C: Future<Output = Result<HandlerResponse<R>, E>>,
{
    async move {
        if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
            return result;
        }
        match spawn(call).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime is shutting down and has dropped the task.
                Err(_) => Ok(HandlerResponse::in_place(shutting_down(&filter), Served::Failed)),
            },
        }
    }
}

fn shutting_down(filter: &IdempotencyFilter) -> Response<ReplayBody> {
    let response =
        ResponseContext { filter: &filter.0, method: &Method::POST, version: Version::HTTP_11 };
    response.fail_with(ErrorKind::ShuttingDown)
}

/// Decides how a call ends after its handler returned or panicked: with a response to record, or
/// with nothing recorded.
fn fate_of<R, E>(
    mut call: Pin<&mut RunningCall<R>>,
    returned: Result<Result<Response<R>, E>, Panic>,
) -> Result<(Response<R>, ResponseDelivery), Unrecorded<R, E>> {
    let mut response = match returned {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(Unrecorded::Failed(error)),
        Err(panic) => return Err(Unrecorded::Panicked(panic)),
    };
    let fields = SpecialFields::of(response.headers());
    if fields.replayed {
        strip_replay_mark(response.headers_mut());
    }
    call.as_mut().set_fields(fields);
    if call.filter().web.publish_window {
        window::withdraw(response.headers_mut());
    }
    let marked = AnswerFate::take(response.extensions_mut());
    let (fate, delivery) = match (marked, &call.filter().fate) {
        (Some(fate), _) => (fate, ResponseDelivery::Stored),
        (None, _) if is_of_router(&call, response.status()) => {
            (AnswerFate::Release, ResponseDelivery::Unmarked)
        }
        (None, None) if !is_stored(&call, response.status()) => {
            (AnswerFate::Release, ResponseDelivery::Unmarked)
        }
        (None, None) => (AnswerFate::Store, ResponseDelivery::Unmarked),
        (None, Some(hook)) => {
            let (parts, body) = response.into_parts();
            let fate = fate_from_hook(&**hook, &parts);
            response = Response::from_parts(parts, body);
            (fate, ResponseDelivery::Unmarked)
        }
    };
    match fate {
        AnswerFate::Store => Ok((response, delivery)),
        AnswerFate::Stream => Ok((response, ResponseDelivery::Streamed)),
        AnswerFate::Release => Err(Unrecorded::Released(response)),
        AnswerFate::Hold => Err(Unrecorded::Held(response)),
    }
}

/// Whether an unmarked response is a 405 behind a layer, which counts as the router's response
/// (HTTP-1). A router that sends a 405 has not run a handler. If the 405 were stored, the client's
/// request with the right method would be refused.
fn is_of_router<R>(call: &RunningCall<R>, status: StatusCode) -> bool {
    status == StatusCode::METHOD_NOT_ALLOWED && call.is_layered()
}

/// Whether the scope stores unmarked responses with this status (HTTP-19).
fn is_stored<R>(call: &RunningCall<R>, status: StatusCode) -> bool {
    let scope = call.context().identity().scope();
    call.filter().switches.stores(scope, call.mark().switches(), status.as_u16())
}

/// Returns the fate that the filter's hook chooses for a response without a mark. If the hook
/// panics, the response is stored, so that the work does not run again.
fn fate_from_hook(hook: &FateHook, parts: &Parts) -> AnswerFate {
    catch_panic(|| hook(parts)).unwrap_or_else(|_| {
        tracing::error!(
            "the filter's `fate` hook panicked, so the response is stored, and retries will get it"
        );
        AnswerFate::Store
    })
}
