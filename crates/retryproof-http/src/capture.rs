// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a handler's response to a finished record: collect, encode, complete, and only then hand
//! over (HTTP-6, HTTP-7, HTTP-13).

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body::{Body, Frame};
use retryproof_core::observe::Phase;
use retryproof_core::{
    CodecId, CompletionFailurePolicy, CompletionResult, Error, ErrorKind, HeldLease, Payload,
    Recorded, Tombstone,
};
use tokio::time::{Sleep, sleep};

use crate::action::{Action, Ended, Unstored, leave};
use crate::body::{Gathered, GuardedBody, ReplayBody};
use crate::catch::catch;
use crate::guard::Call;
use crate::header_map::strip_replay_mark;
use crate::joined::{Record, Taken};
use crate::protocol::decide::{CommitFailure, Finding};
use crate::protocol::stored::Exchange;
use crate::protocol::stored::{
    ResponseDraft, SCHEMA, StoredLine, encode_response, encode_tombstone,
};
use crate::response::{Sensitive, reframe, to_map};

/// Records the answer of an action that returned, and hands it over only then, fit to be sent.
///
/// A block rather than an `async fn`, for its size: see [`guarded`](crate::guard::guarded).
pub(crate) fn record<T, R, E>(
    mut action: Pin<Box<Action<R>>>,
    response: Response<R>,
    way: Way,
) -> impl Future<Output = Result<T, E>>
where
    T: Ended<R>,
    R: Body<Data = Bytes>,
{
    let (mut parts, body) = response.into_parts();
    async move {
        let undone = is_undone(&mut parts);
        if undone && action.call.has_tx() {
            // CMP-7: the writes are undone, and the answer alone is recorded. First, for an open
            // transaction may hold up the rest.
            let rolled_back = Box::pin(action.roll_back()).await;
            if rolled_back && way == Way::Unmarked && action.call.filter().release_on_rollback {
                let response = Response::from_parts(parts, body);
                return Box::pin(leave(action, Unstored::RolledBack(response))).await;
            }
        }
        let ending = Ending::of(action.as_mut(), &mut parts, body, way).await;
        let finished = match (action.as_mut().take_held(), ending.record) {
            (Some(held), record) if !undone && action.call.has_tx() => {
                match Box::pin(joined(&action.call, held, record)).await {
                    Ok(finished) => finished,
                    Err(what) => {
                        let answer = action.call.asked().refuse(Finding::NotCommitted(what));
                        return Ok(T::instead(answer));
                    }
                }
            }
            (Some(held), Record::Response(payload)) => held.complete(payload).await,
            (Some(held), Record::Tombstone(tombstone)) => held.complete_tombstone(tombstone).await,
            (None, _) => CompletionResult::NotOwner,
        };
        let answer = Answer { parts, body: ending.body, action };
        Ok(match (finished, ending.recorded) {
            (CompletionResult::Recorded, Ok(recorded)) => match answer.response() {
                Ok(response) => T::of(response, Some(recorded)),
                Err(action) => T::instead(action.call.asked().refuse(Finding::ResponseFailed)),
            },
            // CMP-9: the work is done and will not run again; to its own caller it is a completion
            // failure.
            (CompletionResult::Recorded, Err(NotEncoded))
            | (CompletionResult::Tombstoned(_), _) => {
                completion_failed(answer, Recorded::Tombstone)
            }
            // On the heap: it is the rare case.
            (CompletionResult::NotOwner, _) => Box::pin(fenced(answer)).await,
            // `Failed`, and whatever a later engine may add: not known to be recorded.
            _ => completion_failed(answer, Recorded::No),
        })
    }
}

/// A response extension of the gRPC form: the answer is an error, though its HTTP status is 200.
#[cfg(feature = "grpc")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Undone;

/// Whether the answer takes the writes of a transaction back (CMP-7).
fn is_undone(parts: &mut Parts) -> bool {
    #[cfg(feature = "grpc")]
    if parts.extensions.remove::<Undone>().is_some() {
        return true;
    }
    parts.status.as_u16() >= 400
}

/// The end of a call whose handler took a transaction (CMP-7): record and writes in one commit. An
/// `Err` is what became of the transaction; nothing is recorded then, and the answer must not be
/// sent.
async fn joined(
    call: &Call,
    held: HeldLease,
    record: Record,
) -> Result<CompletionResult, CommitFailure> {
    let finished = match (call.take_tx(), record) {
        (Taken::Open(tx), record) => tx.commit(held, record).await,
        (Taken::None, Record::Response(payload)) => return Ok(held.complete(payload).await),
        (Taken::None, Record::Tombstone(tombstone)) => {
            return Ok(held.complete_tombstone(tombstone).await);
        }
        (Taken::Kept, _) => {
            tracing::error!(
                identity = %call.ctx.identity(),
                "a guarded transaction was still in use after its handler had answered; it is rolled back"
            );
            let _ = held.release_after(Phase::RolledBack).await;
            return Err(CommitFailure::RolledBack);
        }
    };
    match finished {
        CompletionResult::NotOwner => Err(CommitFailure::LeaseLost),
        CompletionResult::RolledBack(_) => Err(CommitFailure::RolledBack),
        CompletionResult::Unconfirmed(_) => Err(CommitFailure::InDoubt),
        committed => Ok(committed),
    }
}

/// How an answer is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Whole, if it ends in time and within the limit: nothing was said of it.
    Unmarked,
    /// As [`Unmarked`](Self::Unmarked), and stored whatever became of its writes.
    Stored,
    /// As it comes.
    Streamed,
}

/// What is recorded of an answer, and what is left to send.
struct Ending<R> {
    record: Record,
    /// What a completion that succeeds has recorded.
    recorded: Result<Recorded, NotEncoded>,
    body: Left<R>,
}

/// What is left of a body to send.
enum Left<R> {
    /// Nothing of it was read.
    Unread(R),
    /// It was read to its end.
    Whole(ReplayBody),
    /// This part of it was read, and the rest is with the action.
    Read(Bytes),
    /// It broke off.
    Broken,
}

/// The answer could not be encoded: a hook panicked.
struct NotEncoded;

/// A handler's answer between its record and its client.
struct Answer<R> {
    parts: Parts,
    body: Left<R>,
    action: Pin<Box<Action<R>>>,
}

impl<R> Answer<R> {
    /// As it is sent; the action comes back when its body broke off.
    fn response(self) -> Result<Response<GuardedBody<R>>, Pin<Box<Action<R>>>> {
        let body = match self.body {
            Left::Unread(body) => GuardedBody::of_handler(body),
            Left::Whole(body) => GuardedBody::replay(body),
            Left::Read(gathered) => GuardedBody::chain(gathered, self.action),
            Left::Broken => return Err(self.action),
        };
        Ok(Response::from_parts(self.parts, body))
    }
}

impl<R: Body<Data = Bytes>> Ending<R> {
    /// Reads the body, unless it has no end, is known to be over the limit, or is to be streamed.
    async fn of(mut action: Pin<&mut Action<R>>, parts: &mut Parts, body: R, way: Way) -> Self {
        let call = &action.call;
        let limit = call.filter().max_response;
        let size = body.size_hint();
        if way == Way::Streamed
            || is_open_ended(call.method(), parts)
            || size.lower() > limit as u64
        {
            return Self::tombstone(call, parts, Left::Unread(body));
        }
        let patience = call.filter().web.collect_timeout;
        action.as_mut().seat(body);
        let gathered = catch(gather(action.as_mut(), limit, patience)).await;
        let call = &action.call;
        match gathered {
            Ok(Gather::Whole(data, trailers)) => Self::response(call, parts, data, trailers),
            // It said that it would end within the limit.
            Ok(Gather::Over(_)) if size.upper().is_some_and(|most| most <= limit as u64) => {
                Self::broken(call, parts)
            }
            Ok(Gather::Over(data) | Gather::Late(data)) => {
                Self::tombstone(call, parts, Left::Read(data))
            }
            Ok(Gather::Broken) | Err(_) => Self::broken(call, parts),
        }
    }

    /// The work is done, so it must not run again; a body that panics is one that breaks off.
    fn broken(call: &Call, parts: &Parts) -> Self {
        tracing::error!(identity = %call.ctx.identity(), "the handler's response body broke off");
        Self::tombstone(call, parts, Left::Broken)
    }

    fn response(
        call: &Call,
        parts: &mut Parts,
        data: Bytes,
        trailers: Option<Box<HeaderMap>>,
    ) -> Self {
        reframe(&mut parts.headers, data.len());
        let encoded = encode(call, parts, &data, trailers.as_deref());
        let body = Left::Whole(ReplayBody::new(data, trailers));
        match encoded {
            Ok(payload) if payload.envelope().len() <= call.filter().max_value => {
                Self { record: Record::Response(payload), recorded: Ok(Recorded::Yes), body }
            }
            // Over the store's own limit with fields and envelope (HTTP-13).
            Ok(_) => Self::tombstone(call, parts, body),
            Err(error) => {
                tracing::error!(identity = %call.ctx.identity(), %error,
                    "the response is recorded as a tombstone");
                let record = Record::Tombstone(status_alone(parts.status));
                Self { record, recorded: Err(NotEncoded), body }
            }
        }
    }

    fn tombstone(call: &Call, parts: &Parts, body: Left<R>) -> Self {
        Self {
            record: Record::Tombstone(tombstone(call, parts)),
            recorded: Ok(Recorded::Tombstone),
            body,
        }
    }
}

/// Whether a response has no end that could be waited for: an upgrade, a tunnel, an event stream.
fn is_open_ended(method: &Method, parts: &Parts) -> bool {
    let is_event_stream = |value: &HeaderValue| {
        let essence = value.as_bytes().split(|b| *b == b';').next().unwrap_or_default();
        essence.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
    };
    parts.status == StatusCode::SWITCHING_PROTOCOLS
        || (method == Method::CONNECT && parts.status.is_success())
        || parts.headers.get(CONTENT_TYPE).is_some_and(is_event_stream)
}

fn exchange_of(call: &Call) -> Exchange {
    if *call.method() == Method::HEAD { Exchange::Head } else { Exchange::Other }
}

/// The time to collect a body is over.
struct TooLate;

/// How the gathering of a response body ended.
enum Gather {
    /// At its end, within the limit.
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// At the frame that went over the limit, which is part of what was read.
    Over(Bytes),
    /// When its time was over.
    Late(Bytes),
    /// At an error.
    Broken,
}

async fn gather<R>(mut action: Pin<&mut Action<R>>, limit: usize, patience: Duration) -> Gather
where
    R: Body<Data = Bytes>,
{
    let expected = action.body_ref().map_or(0, |body| body.size_hint().lower());
    let expected = usize::try_from(expected).unwrap_or(0).min(limit);
    let mut gathered = Gathered::default();
    let mut trailers = None::<Box<HeaderMap>>;
    // Most bodies are there, and need no timer.
    let mut timer = None::<Pin<Box<Sleep>>>;
    let mut next = |cx: &mut Context<'_>| match action.as_mut().body()?.poll_frame(cx) {
        Poll::Ready(frame) => Some(Poll::Ready(Ok(frame))),
        Poll::Pending => {
            let timer = timer.get_or_insert_with(|| Box::pin(sleep(patience)));
            Some(timer.as_mut().poll(cx).map(|()| Err(TooLate)))
        }
    };
    loop {
        let frame = match poll_fn(|cx| next(cx).unwrap_or(Poll::Ready(Ok(None)))).await {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(TooLate) => return Gather::Late(gathered.into_bytes()),
        };
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                gathered.push(data, expected);
                if gathered.len() > limit {
                    return Gather::Over(gathered.into_bytes());
                }
            }
            Ok(Err(frame)) => {
                if let Ok(more) = frame.into_trailers() {
                    trailers.get_or_insert_default().extend(more);
                }
            }
            Err(_) => return Gather::Broken,
        }
    }
    if let Some(trailers) = &mut trailers {
        strip_replay_mark(trailers);
    }
    Gather::Whole(gathered.into_bytes(), trailers)
}

/// Encodes into the envelope's own buffer. A hook that panics makes the value one that cannot be
/// encoded (CMP-9).
fn encode(
    call: &Call,
    parts: &Parts,
    data: &Bytes,
    trailers: Option<&HeaderMap>,
) -> Result<Payload, Error> {
    let build = || {
        let filter = call.filter();
        let exchange = exchange_of(call);
        with_stored_fields(call, parts, |headers| {
            // The hook edits header fields alone, so nobody has decided about these.
            let sensitive = Sensitive::Unstored { scope: call.ctx.identity().scope().as_str() };
            let trailers = trailers.map(|trailers| {
                filter.stored_trailers(trailers, &parts.headers, exchange, sensitive)
            });
            let draft = ResponseDraft {
                status: parts.status.as_u16(),
                headers: headers.iter().copied(),
                trailers: trailers.iter().flatten().copied(),
                body: std::iter::once(&data[..]),
            };
            Payload::build_with_capacity(CodecId::HTTP, SCHEMA, draft.len(), |out| {
                encode_response(&draft, out);
                Ok::<_, Error>(())
            })
        })
    };
    catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Codec, "a hook panicked while the response was encoded")
            .during("encode")
            .for_identity(call.ctx.identity()))
    })
}

/// A tombstone with what it may tell of the answer; a hook that panics costs all but the status,
/// for it did not say which fields may be kept.
fn tombstone(call: &Call, parts: &Parts) -> Tombstone {
    let detail = || {
        with_stored_fields(call, parts, |headers| {
            let mut detail = Vec::new();
            encode_tombstone(parts.status.as_u16(), headers.iter().copied(), &mut detail);
            Tombstone::with_detail(CodecId::HTTP, SCHEMA, &detail)
        })
    };
    catch_unwind(AssertUnwindSafe(detail)).unwrap_or_else(|_| status_alone(parts.status))
}

fn status_alone(status: StatusCode) -> Tombstone {
    let mut detail = Vec::new();
    encode_tombstone(status.as_u16(), std::iter::empty(), &mut detail);
    Tombstone::with_detail(CodecId::HTTP, SCHEMA, &detail)
}

/// Hands over the fields to store: judged, then edited by the hook, if there is one (HTTP-9).
fn with_stored_fields<T>(
    call: &Call,
    parts: &Parts,
    then: impl FnOnce(&[StoredLine<'_>]) -> T,
) -> T {
    let filter = call.filter();
    let exchange = exchange_of(call);
    let scope = call.ctx.identity().scope().as_str();
    let lines = filter.stored_lines(&parts.headers, exchange, Sensitive::Unstored { scope });
    let Some(edit) = &filter.edit else { return then(&lines) };
    let mut edited = to_map(&lines);
    edit(parts.status, &mut edited);
    then(&filter.stored_lines(&edited, exchange, Sensitive::Stored))
}

/// The completion was refused: its caller is answered like a duplicate, so that all callers of a
/// key see one answer (CMP-2).
async fn fenced<T: Ended<R>, R>(answer: Answer<R>) -> T {
    let call = &answer.action.call;
    let instead: Response<ReplayBody> = match call.filter().engine.answer_fenced(&call.ctx).await {
        Ok(Ok(stored)) => call.judge().repeat(&stored),
        Ok(Err(in_flight)) => call.judge().in_flight(in_flight),
        Err(error) => {
            tracing::error!(%error, "the action ran, but its result was not recorded");
            return completion_failed(answer, Recorded::No);
        }
    };
    T::instead(instead)
}

/// CMP-4: by policy the response goes out all the same, or the call fails. One that broke off
/// cannot go out.
fn completion_failed<T: Ended<R>, R>(answer: Answer<R>, recorded: Recorded) -> T {
    let policy = answer.action.call.filter().engine.config().completion_failure_policy;
    let response = match policy {
        CompletionFailurePolicy::LogAndReturn => answer.response(),
        _ => Err(answer.action),
    };
    match response {
        // It is said beside the response whether it was recorded.
        Ok(response) => T::of(response, Some(recorded)),
        Err(action) => T::instead(action.call.asked().refuse(Finding::CompletionFailed(recorded))),
    }
}
