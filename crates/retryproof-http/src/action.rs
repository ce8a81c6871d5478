// SPDX-License-Identifier: MIT OR Apache-2.0
//! The action of a granted request: the handler, and then its end (step 10e).

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;

use bytes::Bytes;
use http::response::Parts;
use http::{Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use retryproof_core::observe::Phase;
use retryproof_core::{HeldLease, Recorded};
use tracing::Instrument as _;

use crate::body::{GuardedBody, ReplayBody};
#[cfg(feature = "grpc")]
use crate::capture::Undone;
use crate::capture::{Way, record};
use crate::catch::{Panic, catch_from};
use crate::fate::AnswerFate;
use crate::filter::FateHook;
use crate::guard::Call;
use crate::header_map::strip_replay_mark;
use crate::joined::Taken;
use crate::protocol::decide::NoTx;
use crate::then::{Either, then};

/// The handler over the request, then its end: what a granted request does from here on. Boxed
/// before it is spawned, because a task's own allocation is over-aligned, and a large one of that
/// kind is slow to get. It is `Send` where the handler and its answer are: some frameworks keep
/// both on one thread.
pub(crate) fn start<T, R, E, F, Fut>(
    call: Call,
    held: HeldLease,
    run: F,
) -> Pin<Box<impl Future<Output = Result<T, E>> + use<T, R, E, F, Fut>>>
where
    T: Ended<R>,
    R: Body<Data = Bytes>,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<Response<R>, E>>,
{
    // A service may panic when it is called, before its future is.
    let running = catch_from(run);
    let action = Box::pin(Action { call, held: Some(held), body: None });
    Box::pin(then(running, move |ended| finish(action, ended)).in_current_span())
}

/// The answer of an action.
pub(crate) trait Ended<R>: Sized {
    /// The handler's, and what of it was recorded (CMP-4); `None` where nothing was to be.
    fn of(response: Response<GuardedBody<R>>, recorded: Option<Recorded>) -> Self;

    /// One in the place of the handler's.
    fn instead(answer: Response<ReplayBody>) -> Self;
}

impl<R> Ended<R> for Response<GuardedBody<R>> {
    fn of(mut response: Self, recorded: Option<Recorded>) -> Self {
        if let Some(recorded) = recorded {
            response.extensions_mut().insert(recorded);
        }
        response
    }

    fn instead(answer: Response<ReplayBody>) -> Self {
        answer.map(GuardedBody::replay)
    }
}

pin_project! {
    /// A granted call: what its end needs. Boxed, so that the stages of the action hand on a
    /// pointer. The handler's body is read in here, which costs no allocation of its own; what was
    /// not read goes on to the connection in the same place.
    pub(crate) struct Action<R> {
        pub(crate) call: Call,
        // Taken by whatever ends the lease.
        held: Option<HeldLease>,
        #[pin]
        body: Option<R>,
    }
}

impl<R> Action<R> {
    pub(crate) fn take_held(self: Pin<&mut Self>) -> Option<HeldLease> {
        self.project().held.take()
    }

    /// Puts the body in its place, to be read.
    pub(crate) fn seat(self: Pin<&mut Self>, body: R) {
        self.project().body.set(Some(body));
    }

    pub(crate) fn body(self: Pin<&mut Self>) -> Option<Pin<&mut R>> {
        self.project().body.as_pin_mut()
    }

    pub(crate) fn body_ref(&self) -> Option<&R> {
        self.body.as_ref()
    }

    /// The call has ended, and its body goes on: lets go of what nothing asks for any more.
    pub(crate) fn let_go(self: Pin<&mut Self>) {
        self.project().call.forget_request();
    }

    /// Undoes what the handler wrote in its transaction, if it began one (CMP-7). One that
    /// something else still holds is rolled back when that lets go, for nobody commits it.
    ///
    /// True when there was one, and it is.
    pub(crate) fn roll_back(&self) -> impl Future<Output = bool> + Send + use<R> {
        let taken = self.call.take_tx();
        async move {
            let Taken::Open(tx) = taken else { return false };
            tx.roll_back().await;
            true
        }
    }

    /// Frees the key. A release that fails is logged by the engine and hides nothing (RUN-4); the
    /// lease runs out then.
    async fn release(mut self: Pin<Box<Self>>, phase: Phase) {
        self.roll_back().await;
        if let Some(held) = self.as_mut().take_held() {
            let _ = held.release_after(phase).await;
        }
    }
}

/// The end of the action: capture and completion, or release (step 10e).
fn finish<T, R, E>(
    action: Pin<Box<Action<R>>>,
    ended: Result<Result<Response<R>, E>, Panic>,
) -> impl Future<Output = Result<T, E>>
where
    T: Ended<R>,
    R: Body<Data = Bytes>,
{
    let unstored = match ended {
        Ok(Ok(mut response)) => {
            strip_replay_mark(response.headers_mut());
            let marked = AnswerFate::take(response.extensions_mut());
            let (fate, way) = match (marked, &action.call.filter().fate) {
                (Some(fate), _) => (fate, Way::Stored),
                (None, _) if is_of_router(&action.call, response.status()) => {
                    (AnswerFate::Release, Way::Unmarked)
                }
                (None, None) => (AnswerFate::Store, Way::Unmarked),
                (None, Some(hook)) => {
                    let (parts, body) = response.into_parts();
                    let fate = unmarked(&**hook, &parts);
                    response = Response::from_parts(parts, body);
                    (fate, Way::Unmarked)
                }
            };
            match fate {
                AnswerFate::Store => return Either::usual(record(action, response, way)),
                AnswerFate::Stream => {
                    return Either::usual(record(action, response, Way::Streamed));
                }
                AnswerFate::Release => Unstored::Released(response),
                AnswerFate::Hold => Unstored::Held(response),
            }
        }
        Ok(Err(error)) => Unstored::Failed(error),
        Err(panic) => Unstored::Panicked(panic),
    };
    Either::rare(leave(action, unstored))
}

/// Whether an unmarked answer is that of the router below a layer, which says that the path is not
/// for this method (HTTP-1). Nothing ran; stored, the answer would stand in the way of the request
/// that the client meant.
fn is_of_router(call: &Call, status: StatusCode) -> bool {
    status == StatusCode::METHOD_NOT_ALLOWED && call.is_layered()
}

/// What the filter's hook says of an answer that carries no mark. One that panics says nothing: the
/// answer is stored, so that its work does not run again.
fn unmarked(hook: &FateHook, parts: &Parts) -> AnswerFate {
    catch_unwind(AssertUnwindSafe(|| hook(parts))).unwrap_or_else(|_| {
        tracing::error!("the filter's hook on fates panicked; the answer is stored");
        AnswerFate::Store
    })
}

/// An end of which nothing is recorded.
pub(crate) enum Unstored<R, E> {
    Released(Response<R>),
    /// Its writes were taken back, and with them all that the handler did (CMP-7).
    RolledBack(Response<R>),
    Held(Response<R>),
    Failed(E),
    Panicked(Panic),
}

pub(crate) async fn leave<T: Ended<R>, R, E>(
    mut action: Pin<Box<Action<R>>>,
    unstored: Unstored<R, E>,
) -> Result<T, E> {
    match unstored {
        Unstored::Released(mut response) => {
            let own =
                response.extensions_mut().remove::<NoTx>().map(|what| action.call.no_tx(what));
            action.release(Phase::Released).await;
            Ok(match own {
                Some(answer) => T::instead(answer),
                None => T::of(unrecorded(response), None),
            })
        }
        Unstored::RolledBack(response) => {
            action.release(Phase::RolledBack).await;
            Ok(T::of(unrecorded(response), None))
        }
        Unstored::Held(response) => {
            action.roll_back().await;
            // The lease runs out.
            if let Some(held) = action.as_mut().take_held() {
                held.hold();
            }
            Ok(T::of(unrecorded(response), None))
        }
        Unstored::Failed(error) => {
            action.release(Phase::Action).await;
            Err(error)
        }
        Unstored::Panicked(panic) => {
            action.release(Phase::Panic).await;
            resume_unwind(panic)
        }
    }
}

/// The handler's answer, as it is sent. What gRPC says of it to the guard goes no further.
fn unrecorded<R>(response: Response<R>) -> Response<GuardedBody<R>> {
    #[cfg(feature = "grpc")]
    let response = {
        let mut response = response;
        response.extensions_mut().remove::<Undone>();
        response
    };
    response.map(GuardedBody::of_handler)
}
