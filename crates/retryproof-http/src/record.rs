// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records the handler's response: reads its body, encodes the response, completes the call, and
//! only then hands the response over (HTTP-6, HTTP-7, HTTP-13).
//!
//! This file is over 400 lines long because each stage has one file, and all steps of this stage
//! (reading, encoding, completing) work on the same response.

use std::future::Future;
use std::pin::{Pin, pin};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::Body;
use retryproof_core::internal::{catch_panic, catch_panic_of};
use retryproof_core::observe::Phase;
use retryproof_core::{
    CodecId, CompletionFailurePolicy, CompletionResult, Error, ErrorKind, HeldLease,
    IdempotencyContext, Payload, Recorded, Tombstone,
};

use crate::body::{GuardedBody, ReadOutcome, ReplayBody, read_response};
use crate::call::{CompletionValue, RunningCall, TakenTransaction};
use crate::duplicate::DuplicateRequest;
use crate::end::{Unrecorded, end_unrecorded};
#[cfg(feature = "grpc")]
use crate::fate::RollBackWrites;
use crate::header_map::{SpecialFields, remove_in_order};
use crate::protocol::decide::{CommitFailure, Finding};
use crate::protocol::stored::{
    ConnectionNames, Exchange, ResponseDraft, SCHEMA, SensitiveFields, StoredLine, encode_response,
    encode_tombstone,
};
use crate::response::{HandlerResponse, ResponseContext};
use crate::served::Served;
use crate::window;

/// How a response is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseDelivery {
    /// The response has no mark, and is read whole if its body ends in time and within the limit.
    Unmarked,
    /// Like [`Unmarked`](Self::Unmarked), but the response is stored even if the handler's writes
    /// are rolled back.
    Stored,
    /// The body is sent as it arrives.
    Streamed,
}

/// Records a handler's response, and only then returns the response, ready to be sent.
///
/// The function returns an `async` block, because the future of an `async fn` would hold each
/// argument twice.
pub(crate) fn record<R, E>(
    mut call: Pin<Box<RunningCall<R>>>,
    response: Response<R>,
    delivery: ResponseDelivery,
) -> impl Future<Output = Result<HandlerResponse<R>, E>>
where
    R: Body<Data = Bytes>,
{
    let (mut parts, body) = response.into_parts();
    async move {
        let rolls_back = rolls_back(&mut parts);
        if rolls_back && call.has_tx() {
            // CMP-7: roll back the writes before the response is recorded or the key is freed,
            // because an open transaction can block other calls.
            let rolled_back = Box::pin(call.roll_back()).await;
            if rolled_back
                && delivery == ResponseDelivery::Unmarked
                && call.filter().release_on_rollback
            {
                let response = Response::from_parts(parts, body);
                return Box::pin(end_unrecorded(call, Unrecorded::RolledBack(response))).await;
            }
        }
        publish_window(&call, &mut parts);
        let captured = CapturedResponse::read(call.as_mut(), &mut parts, body, delivery).await;
        let completed = match (call.as_mut().take_lease(), captured.value) {
            (Some(lease), value) if !rolls_back && call.has_tx() => {
                let tx = call.take_tx();
                match Box::pin(commit_transaction(tx, call.context(), lease, value)).await {
                    Ok(completed) => completed,
                    Err(failure) => {
                        let response = ResponseContext::of_call(call.mark());
                        let response = response.refuse(Finding::NotCommitted(failure));
                        return Ok(HandlerResponse::in_place(response, failure.served()));
                    }
                }
            }
            (Some(lease), CompletionValue::Response(payload)) => lease.complete(payload).await,
            (Some(lease), CompletionValue::Tombstone(tombstone)) => {
                lease.complete_tombstone(tombstone).await
            }
            (None, _) => CompletionResult::NotOwner,
        };
        let unsent = UnsentResponse { parts, body: captured.body, call };
        Ok(match (completed, captured.recorded) {
            // This arm also covers a call whose scope is switched off, which has nothing to record
            // (CTX-5).
            (CompletionResult::Recorded, recorded) if recorded.is_ok() || !unsent.is_guarded() => {
                match unsent.into_response() {
                    Ok(response) => {
                        let recorded = recorded.unwrap_or(Recorded::No);
                        HandlerResponse::of_handler(response, Some(recorded), Served::Executed)
                    }
                    Err(call) => HandlerResponse::in_place(
                        ResponseContext::of_call(call.mark()).refuse(Finding::ResponseFailed),
                        Served::Executed,
                    ),
                }
            }
            // CMP-9: a tombstone is recorded, so the work will not run again. The policy decides
            // which response this caller gets.
            (CompletionResult::Recorded | CompletionResult::Tombstoned(_), _) => {
                completion_failed(unsent, Recorded::Tombstone, Served::Executed)
            }
            // Box the future of this rare case, so that the common case takes less space.
            (CompletionResult::NotOwner, _) => Box::pin(respond_as_duplicate(unsent)).await,
            // `Unconfirmed`, and any variant that a later engine adds, means that the response
            // might not be recorded.
            _ => completion_failed(unsent, Recorded::No, Served::Unconfirmed),
        })
    }
}

impl CommitFailure {
    /// Returns the outcome that the engine reports for the call (RUN-7), if it is already decided.
    fn served(self) -> Served {
        match self {
            Self::RolledBack => Served::Failed,
            Self::LeaseLost => Served::Lost,
            Self::InDoubt => Served::Unconfirmed,
        }
    }
}

/// If the filter publishes the replay window, adds the end of the window to the response (HTTP-21).
fn publish_window<R>(call: &RunningCall<R>, parts: &mut Parts) {
    let filter = call.filter();
    if filter.web.publish_window && call.mark().lease().is_guarded() {
        window::publish(&mut parts.headers, filter.engine.ttl_of(call.context()));
    }
}

/// Whether this response causes the handler's writes to be rolled back (CMP-7).
fn rolls_back(parts: &mut Parts) -> bool {
    #[cfg(feature = "grpc")]
    if parts.extensions.remove::<RollBackWrites>().is_some() {
        return true;
    }
    parts.status.as_u16() >= 400
}

/// Ends a call whose handler took a transaction: commits the record together with the writes
/// (CMP-7). After an `Err`, the response must not be sent, because it may not be recorded.
async fn commit_transaction(
    tx: TakenTransaction,
    context: &IdempotencyContext,
    lease: HeldLease,
    value: CompletionValue,
) -> Result<CompletionResult, CommitFailure> {
    let committed = match (tx, value) {
        (TakenTransaction::Open(tx), value) => tx.commit(lease, value).await,
        (TakenTransaction::None, CompletionValue::Response(payload)) => {
            return Ok(lease.complete(payload).await);
        }
        (TakenTransaction::None, CompletionValue::Tombstone(tombstone)) => {
            return Ok(lease.complete_tombstone(tombstone).await);
        }
        (TakenTransaction::Kept, _) => {
            tracing::error!(
                identity = %context.identity(),
                "a guarded transaction is rolled back, because it was still in use after its \
                 handler returned"
            );
            let _ = lease.release_after(Phase::RolledBack).await;
            return Err(CommitFailure::RolledBack);
        }
    };
    match committed {
        CompletionResult::NotOwner => Err(CommitFailure::LeaseLost),
        CompletionResult::RolledBack(_) => Err(CommitFailure::RolledBack),
        CompletionResult::Unconfirmed(_) => Err(CommitFailure::InDoubt),
        committed => Ok(committed),
    }
}

/// A response that is ready to be recorded: the value to record and the body to send.
struct CapturedResponse<R> {
    value: CompletionValue,
    /// How much of the response a successful completion records.
    recorded: Result<Recorded, EncodingFailed>,
    body: UnsentBody<R>,
}

/// The body of a response before it is sent.
enum UnsentBody<R> {
    /// The body was not read.
    Unread(R),
    /// The body was read to its end.
    Whole(ReplayBody),
    /// The part of the body that was read. The rest is in the [`RunningCall`].
    Partial(Bytes),
    /// The body broke off.
    Broken,
}

/// The response could not be encoded because a hook panicked.
struct EncodingFailed;

/// A handler's response after its call was completed and before the response is sent.
struct UnsentResponse<R> {
    parts: Parts,
    body: UnsentBody<R>,
    call: Pin<Box<RunningCall<R>>>,
}

impl<R> UnsentResponse<R> {
    fn is_guarded(&self) -> bool {
        self.call.mark().lease().is_guarded()
    }

    /// Returns the response to send. If its body broke off, returns the call as an `Err`.
    fn into_response(self) -> Result<Response<GuardedBody<R>>, Pin<Box<RunningCall<R>>>> {
        let body = match self.body {
            UnsentBody::Unread(body) => GuardedBody::of_handler(body),
            UnsentBody::Whole(body) => GuardedBody::replay(body),
            UnsentBody::Partial(read) => GuardedBody::chain(read, self.call),
            UnsentBody::Broken => return Err(self.call),
        };
        Ok(Response::from_parts(self.parts, body))
    }
}

impl<R: Body<Data = Bytes>> CapturedResponse<R> {
    /// Reads the body, unless the body is endless, has to be streamed, or is known to be over the
    /// limit.
    async fn read(
        mut call: Pin<&mut RunningCall<R>>,
        parts: &mut Parts,
        body: R,
        delivery: ResponseDelivery,
    ) -> Self {
        let limit = call.filter().max_response;
        let size = body.size_hint();
        if delivery == ResponseDelivery::Streamed
            || is_open_ended(&call, parts.status)
            || size.lower() > limit as u64
        {
            return Self::tombstone(&call, parts, UnsentBody::Unread(body));
        }
        let timeout = call.filter().web.collect_timeout;
        call.as_mut().set_response_body(body);
        let read = match call.as_mut().response_body_mut() {
            Some(body) => catch_panic_of(pin!(read_response(body, limit, timeout))).await,
            None => Ok(ReadOutcome::Broken),
        };
        match read {
            // The body is shorter than its size hint says, so part of it is missing.
            Ok(ReadOutcome::Whole(data, _))
                if (data.len() as u64) < size.lower() && sends_body(&call, parts.status) =>
            {
                Self::broken(&call, parts)
            }
            Ok(ReadOutcome::Whole(data, trailers)) => Self::response(&call, parts, data, trailers),
            // The body is longer than its size hint says. It is therefore broken, not merely too
            // large.
            Ok(ReadOutcome::OverLimit(_))
                if size.upper().is_some_and(|upper| upper <= limit as u64) =>
            {
                Self::broken(&call, parts)
            }
            Ok(ReadOutcome::OverLimit(data) | ReadOutcome::TimedOut(data)) => {
                Self::tombstone(&call, parts, UnsentBody::Partial(data))
            }
            Ok(ReadOutcome::Broken) | Err(_) => Self::broken(&call, parts),
        }
    }

    /// Captures a response as a tombstone because its body broke off: the work is done and must not
    /// run again. A body that panicked when it was polled also counts as broken off.
    fn broken(call: &RunningCall<R>, parts: &Parts) -> Self {
        tracing::error!(
            identity = %call.context().identity(),
            "the body of a handler's response was interrupted; the work is recorded as done, and \
             the client gets an error"
        );
        Self::tombstone(call, parts, UnsentBody::Broken)
    }

    fn response(
        call: &RunningCall<R>,
        parts: &mut Parts,
        data: Bytes,
        trailers: Option<Box<HeaderMap>>,
    ) -> Self {
        reframe(&mut parts.headers, call.fields(), data.len());
        let encoded = encode(call, parts, &data, trailers.as_deref());
        let body = UnsentBody::Whole(ReplayBody::new(data, trailers));
        match encoded {
            Ok(payload) if payload.envelope().len() <= call.filter().max_value => Self {
                value: CompletionValue::Response(payload),
                recorded: Ok(Recorded::Yes),
                body,
            },
            // Body, header fields and envelope together exceed the store's own limit (HTTP-13).
            Ok(_) => Self::tombstone(call, parts, body),
            Err(error) => {
                tracing::error!(
                    identity = %call.context().identity(),
                    %error,
                    "the response cannot be stored; a tombstone is recorded instead, so a retry \
                     neither runs the work again nor gets its response"
                );
                let value = CompletionValue::Tombstone(status_alone(parts.status));
                Self { value, recorded: Err(EncodingFailed), body }
            }
        }
    }

    fn tombstone(call: &RunningCall<R>, parts: &Parts, body: UnsentBody<R>) -> Self {
        Self {
            value: CompletionValue::Tombstone(tombstone(call, parts)),
            recorded: Ok(Recorded::Tombstone),
            body,
        }
    }
}

/// Whether the response is an upgrade, a tunnel or an event stream. The body of such a response has
/// no end to wait for.
fn is_open_ended<R>(call: &RunningCall<R>, status: StatusCode) -> bool {
    status == StatusCode::SWITCHING_PROTOCOLS
        || (*call.method() == Method::CONNECT && status.is_success())
        || call.fields().event_stream
}

/// Whether the response's body is sent. A response to HEAD, or a 304, can have the size of a body
/// that is not sent.
fn sends_body<R>(call: &RunningCall<R>, status: StatusCode) -> bool {
    *call.method() != Method::HEAD && status != StatusCode::NOT_MODIFIED
}

fn exchange_of<R>(call: &RunningCall<R>) -> Exchange {
    if *call.method() == Method::HEAD { Exchange::Head } else { Exchange::Other }
}

/// Encodes the response into the envelope's buffer. If a hook panics, the response counts as
/// impossible to encode (CMP-9).
fn encode<R>(
    call: &RunningCall<R>,
    parts: &Parts,
    data: &Bytes,
    trailers: Option<&HeaderMap>,
) -> Result<Payload, Error> {
    let build = || {
        with_stored_fields(call, parts, |headers| {
            // Store no sensitive trailers, because the hook that approves sensitive fields sees
            // only header fields. Also read `Connection` from the header fields, because it can
            // name trailers.
            let trailers = trailers.map(|trailers| {
                let names = connection_lines(&parts.headers).chain(connection_lines(trailers));
                let connection = ConnectionNames::parse(names);
                stored_lines(call, trailers, &connection, SensitiveFields::Unstored)
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
    catch_panic(build).unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::Codec,
            "a hook of the filter panicked while the response was being encoded",
        )
        .during("encode")
        .for_identity(call.context().identity()))
    })
}

/// Creates a tombstone with the response's status and the header fields that fit into it. If a hook
/// panics, the tombstone has only the status, because it is not known which fields the hook would
/// have kept.
fn tombstone<R>(call: &RunningCall<R>, parts: &Parts) -> Tombstone {
    let detail = || {
        with_stored_fields(call, parts, |headers| {
            let mut detail = Vec::new();
            encode_tombstone(parts.status.as_u16(), headers.iter().copied(), &mut detail);
            Tombstone::with_detail(CodecId::HTTP, SCHEMA, &detail)
        })
    };
    catch_panic(detail).unwrap_or_else(|_| status_alone(parts.status))
}

fn status_alone(status: StatusCode) -> Tombstone {
    let mut detail = Vec::new();
    encode_tombstone(status.as_u16(), std::iter::empty(), &mut detail);
    Tombstone::with_detail(CodecId::HTTP, SCHEMA, &detail)
}

/// Calls `then` with the header fields to store, as edited by the filter's hook (HTTP-9).
fn with_stored_fields<R, T>(
    call: &RunningCall<R>,
    parts: &Parts,
    then: impl FnOnce(&[StoredLine<'_>]) -> T,
) -> T {
    let connection = match call.fields().connection {
        true => ConnectionNames::parse(connection_lines(&parts.headers)),
        false => ConnectionNames::default(),
    };
    let lines = stored_lines(call, &parts.headers, &connection, SensitiveFields::Unstored);
    let Some(edit) = &call.filter().edit else { return then(&lines) };
    let mut edited = to_map(&lines);
    edit(parts.status, &mut edited);
    let connection = ConnectionNames::parse(connection_lines(&edited));
    then(&stored_lines(call, &edited, &connection, SensitiveFields::Stored))
}

/// Returns the lines of `fields` to store, in the response's order (HTTP-8, HTTP-9).
fn stored_lines<'a, R>(
    call: &RunningCall<R>,
    fields: &'a HeaderMap,
    connection: &ConnectionNames,
    sensitive: SensitiveFields,
) -> Vec<StoredLine<'a>> {
    let filter = call.filter();
    let exchange = exchange_of(call);
    let lines = fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let is_stored = |(name, _): &StoredLine<'_>| {
        filter.fields.stores(name, connection, exchange, sensitive, || {
            filter.warn_unstored(call.context().identity().scope().as_str(), name);
        })
    };
    lines.filter(is_stored).collect()
}

fn connection_lines(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes)
}

/// Converts stored lines to a map that a hook can edit.
fn to_map(lines: &[StoredLine<'_>]) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(lines.len());
    for (name, value) in lines {
        // The lines came from a `HeaderMap`, so their names and values are valid.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
        {
            map.append(name, value);
        }
    }
    map
}

/// Corrects the framing fields of a body that was assembled from its frames. hyper trusts these
/// fields, so a `Transfer-Encoding` that was copied from another server's response, or a wrong
/// `Content-Length`, would break the connection (HTTP-6, HTTP-9). An empty body keeps its declared
/// length, because a response to HEAD, or a 304, can declare the length of a body that is not sent.
fn reframe(headers: &mut HeaderMap, fields: SpecialFields, length: usize) {
    if fields.transfer_encoding {
        remove_in_order(headers, &TRANSFER_ENCODING);
    }
    if !fields.content_length || length == 0 {
        return;
    }
    let mut declared = headers.get_all(CONTENT_LENGTH).iter();
    let fits = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.parse() == Ok(length));
    if !declared.all(fits) {
        remove_in_order(headers, &CONTENT_LENGTH);
    }
}

/// Creates the response for a call whose completion was refused because another run took over. The
/// client gets the response that a duplicate would get, so that all callers of a key get the same
/// response (CMP-2).
async fn respond_as_duplicate<R>(unsent: UnsentResponse<R>) -> HandlerResponse<R> {
    let answered = unsent.call.filter().engine.answer_fenced(unsent.call.context()).await;
    let response = match answered {
        Ok(Ok(stored)) => DuplicateRequest::of_call(&unsent.call).respond_from_record(&stored).0,
        Ok(Err(in_flight)) => DuplicateRequest::of_call(&unsent.call).in_flight(in_flight),
        Err(error) => {
            tracing::error!(%error,
                "the action ran, but its result was not recorded, and there is no other caller's \
                 result to return");
            return completion_failed(unsent, Recorded::No, Served::Lost);
        }
    };
    HandlerResponse::in_place(response, Served::Lost)
}

/// Returns the response with its `Recorded`, or fails the call, as the completion failure policy
/// decides (CMP-4). The call always fails if the response's body broke off.
fn completion_failed<R>(
    mut unsent: UnsentResponse<R>,
    recorded: Recorded,
    served: Served,
) -> HandlerResponse<R> {
    let policy = unsent.call.filter().engine.config().completion_failure_policy;
    if recorded == Recorded::No && unsent.call.filter().web.publish_window {
        // Remove the published window from the response, because another request with the key can
        // run as soon as the lease ends.
        window::withdraw(&mut unsent.parts.headers);
    }
    let response = match policy {
        CompletionFailurePolicy::LogAndReturn => unsent.into_response(),
        _ => Err(unsent.call),
    };
    match response {
        Ok(response) => HandlerResponse::of_handler(response, Some(recorded), served),
        Err(call) => {
            let finding = Finding::CompletionFailed(recorded);
            let response = ResponseContext::of_call(call.mark()).refuse(finding);
            HandlerResponse::in_place(response, served)
        }
    }
}
