// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates the guard's responses (problems, replays and the results of granted calls), and converts
//! them to the types of other web frameworks (HTTP-8, HTTP-11).

use std::error::Error as _;
use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, TRAILER, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use retryproof_core::{Error, ErrorKind, Recorded};

use crate::body::{GuardedBody, ReplayBody};
use crate::call::CallMark;
use crate::filter::Inner;
use crate::head::RequestHead;
use crate::header_map::REPLAYED;
use crate::protocol::decide::{Decision, Finding, decide};
use crate::protocol::problem::Problem;
use crate::protocol::stored::{
    COMMON_NAMES, Corrupt, StoredName, StoredReader, StoredRecord, trailer_field,
};
use crate::served::Served;

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The common header names, indexed by their codes. A replay clones these names instead of parsing
/// them.
static COMMON_HEADER_NAMES: LazyLock<Vec<HeaderName>> =
    LazyLock::new(|| COMMON_NAMES.iter().copied().map(HeaderName::from_static).collect());

/// The filter, and the parts of a request that it uses to create one of its own responses.
#[derive(Clone, Copy)]
pub(crate) struct ResponseContext<'a> {
    pub(crate) filter: &'a Inner,
    pub(crate) method: &'a Method,
    pub(crate) version: Version,
}

impl<'a> ResponseContext<'a> {
    pub(crate) fn of_head(filter: &'a Inner, head: &'a impl RequestHead) -> Self {
        Self { filter, method: head.method(), version: head.version() }
    }

    pub(crate) fn of_call(mark: &'a CallMark) -> Self {
        Self { filter: mark.filter(), method: mark.route().method(), version: mark.version() }
    }

    /// Creates the response for a finding that the decision table refuses.
    #[cold]
    pub(crate) fn refuse(&self, finding: Finding) -> Response<ReplayBody> {
        match decide(finding, &self.filter.settings()) {
            Decision::Refuse(problem) => self.render(&problem),
            // `decide` passes only a request without a key, and `admit` has already handled that
            // case.
            Decision::Pass => self.fail_with(ErrorKind::Unexpected),
        }
    }

    /// Creates the response for a failure of the engine or the store, and logs the error with a
    /// masked identity (ID-4, HTTP-14).
    #[cold]
    pub(crate) fn fail(&self, error: &Error) -> Response<ReplayBody> {
        let source = error.source();
        if error.is_retryable() {
            tracing::warn!(%error, source,
                "a request was refused because of an error of the engine or the store; its handler \
                 did not run");
        } else {
            tracing::error!(%error, source,
                "a request was refused because of an error of the engine or the store; its handler \
                 did not run");
        }
        self.fail_with(error.kind())
    }

    #[cold]
    pub(crate) fn fail_with(&self, kind: ErrorKind) -> Response<ReplayBody> {
        self.refuse(Finding::Failed { kind, ticket: self.filter.ticket() })
    }

    /// Renders a problem. The response to a HEAD request has only the header fields, without a
    /// body.
    #[cold]
    pub(crate) fn render(&self, problem: &Problem) -> Response<ReplayBody> {
        let mut response = match &self.filter.format {
            Some(format) => format(problem),
            None => problem_response(problem),
        };
        response.extensions_mut().insert(Served::of_problem(problem.code));
        // An HTTP/1.x connection cannot be reused after an unread body (HTTP-4). HTTP/2 does not
        // allow the `Connection` field.
        if problem.close && self.version < Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if *self.method == Method::HEAD {
            let length = HeaderValue::from(response.body().len());
            response.headers_mut().insert(CONTENT_LENGTH, length);
            *response.body_mut() = Bytes::new();
        }
        response.map(Into::into)
    }
}

pub(crate) fn problem_response(problem: &Problem) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(problem.to_json()));
    *response.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, NO_STORE);
    if let Some(seconds) = problem.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(challenge) =
        problem.challenge.as_deref().and_then(|text| HeaderValue::from_str(text).ok())
    {
        headers.insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

/// The response of a granted call.
#[derive(Debug)]
pub struct HandlerResponse<R> {
    /// The handler's response, or a response that replaces it.
    pub response: Response<GuardedBody<R>>,
    /// Whether `response` is the handler's own response.
    pub is_handlers: bool,
    /// How much of the handler's response was recorded (CMP-4); `None` if nothing had to be
    /// recorded, or if the response is not the handler's.
    pub recorded: Option<Recorded>,
    /// How the call ended (HTTP-18).
    pub served: Served,
}

impl<R> HandlerResponse<R> {
    pub(crate) fn of_handler(
        response: Response<GuardedBody<R>>,
        recorded: Option<Recorded>,
        served: Served,
    ) -> Self {
        Self { response, is_handlers: true, recorded, served }
    }

    /// Creates the result for a response that replaces the handler's response.
    pub(crate) fn in_place(response: Response<ReplayBody>, served: Served) -> Self {
        let response = response.map(GuardedBody::replay);
        Self { response, is_handlers: false, recorded: None, served }
    }

    /// Marks the result of a call whose scope is switched off or in shadow mode: nothing is
    /// recorded, so a retry runs the handler again (CTX-5, CTX-6).
    pub(crate) fn unguarded(mut self, served: Served) -> Self {
        self.recorded = self.recorded.map(|_| Recorded::No);
        self.served = served;
        self
    }

    /// Returns the response with `recorded` and `served` as extensions.
    pub(crate) fn into_response(self) -> Response<GuardedBody<R>> {
        let Self { mut response, recorded, served, .. } = self;
        if let Some(recorded) = recorded {
            response.extensions_mut().insert(recorded);
        }
        response.extensions_mut().insert(served);
        response
    }
}

/// A web framework's type for a response that the guard sends without running the handler.
pub trait FrameworkResponse: Sized {
    /// Converts one of the filter's own responses, and keeps its extension [`Served`].
    fn from_refusal(response: Response<ReplayBody>) -> Self;

    /// Converts the stored response, and adds the marks of a replay (HTTP-8) and the extension
    /// [`Served::Replayed`].
    ///
    /// # Errors
    /// [`Corrupt`] if the record cannot be read, or has a field that cannot be sent.
    fn from_record(record: StoredRecord<'_>) -> Result<Self, Corrupt>;
}

impl FrameworkResponse for Response<ReplayBody> {
    fn from_refusal(response: Self) -> Self {
        response
    }

    fn from_record(record: StoredRecord<'_>) -> Result<Self, Corrupt> {
        replay_response(record)
    }
}

/// Creates the stored response with the marks of a replay (HTTP-8), in one pass over its record.
fn replay_response(stored: StoredRecord<'_>) -> Result<Response<ReplayBody>, Corrupt> {
    let record = stored.bytes;
    let (mut reader, status, tombstone) = StoredReader::open(record)?;
    if tombstone {
        return Err(Corrupt::bad_field());
    }
    // Reserve space in the map for `Cache-Control`, the mark of a replay and `Trailer`.
    let count = reader.count()?;
    let mut headers = map_of(stored, &mut reader, count, 3)?;
    let trailers = match reader.count()? {
        0 => None,
        count => {
            Some(Box::new(map_of(stored, &mut reader, count, 0)?)).filter(|map| !map.is_empty())
        }
    };
    let body_len = reader.varint()?;
    reader.ends_after(body_len)?;
    let full = |_| Corrupt::too_many_fields();
    // Overwrite a stored `Cache-Control`, because every replay is sent with `no-store`.
    headers.try_insert(CACHE_CONTROL, NO_STORE).map_err(full)?;
    headers.try_insert(REPLAYED, HeaderValue::from_static("true")).map_err(full)?;
    if let Some(trailers) = &trailers {
        let names = trailer_field(trailers.keys().map(HeaderName::as_str));
        let names = HeaderValue::try_from(names).map_err(|_| Corrupt::bad_field())?;
        headers.try_insert(TRAILER, names).map_err(full)?;
    }
    let mut response =
        Response::new(ReplayBody::new(record.slice(record.len() - body_len..), trailers));
    *response.status_mut() = StatusCode::from_u16(status).map_err(|_| Corrupt::bad_field())?;
    *response.headers_mut() = headers;
    response.extensions_mut().insert(Served::Replayed);
    Ok(response)
}

/// Reads the next `count` lines into a map that has capacity for `spare` more fields.
fn map_of(
    stored: StoredRecord<'_>,
    reader: &mut StoredReader<'_>,
    count: usize,
    spare: usize,
) -> Result<HeaderMap, Corrupt> {
    let mut map =
        HeaderMap::try_with_capacity(count + spare).map_err(|_| Corrupt::too_many_fields())?;
    for _ in 0..count {
        let (name, value) = reader.named_line()?;
        let name = match name {
            StoredName::Common(code) if stored.drops(code) => continue,
            StoredName::Common(code) => COMMON_HEADER_NAMES
                .get(usize::from(code))
                .cloned()
                .ok_or_else(Corrupt::bad_field)?,
            StoredName::Literal(name) => {
                HeaderName::from_bytes(name.as_bytes()).map_err(|_| Corrupt::bad_field())?
            }
        };
        let value = HeaderValue::from_maybe_shared(stored.bytes.slice_ref(value))
            .map_err(|_| Corrupt::bad_field())?;
        map.try_append(name, value).map_err(|_| Corrupt::too_many_fields())?;
    }
    Ok(map)
}
