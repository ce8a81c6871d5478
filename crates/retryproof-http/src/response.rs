// SPDX-License-Identifier: MIT OR Apache-2.0
//! Responses in `http` types: problems, replays, and what of a handler's response is stored (HTTP-8,
//! HTTP-9, HTTP-11).

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, TRAILER,
    TRANSFER_ENCODING, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};

use crate::body::ReplayBody;
use crate::filter::Inner;
use crate::header_map::{REPLAYED, remove_in_order};
use crate::protocol::problem::Problem;
use crate::protocol::stored::{
    COMMON_NAMES, ConnectionNames, Corrupt, Exchange, FieldVerdict, StoredLine, StoredName,
    StoredReader, StoredRecord, trailer_field,
};

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The common names by code: a replay clones them, and parses no name.
static COMMON_HEADER_NAMES: LazyLock<Vec<HeaderName>> =
    LazyLock::new(|| COMMON_NAMES.iter().copied().map(HeaderName::from_static).collect());

impl Inner {
    /// Renders a problem. The response to a HEAD request has the fields without the body.
    pub(crate) fn render_problem(
        &self,
        problem: &Problem,
        method: &Method,
        version: Version,
    ) -> Response<ReplayBody> {
        let mut response = match &self.format {
            Some(format) => format(problem),
            None => problem_response(problem),
        };
        // An HTTP/1.x connection cannot be used again after an unread body (HTTP-4). In HTTP/2 the
        // field is malformed.
        if problem.close && version < Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if *method == Method::HEAD {
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

/// A response without a run, in the type of a web framework.
pub trait FrameworkResponse: Sized {
    /// A response that the filter made itself.
    fn from_refusal(response: Response<ReplayBody>) -> Self;

    /// The stored response with the marks of a replay (HTTP-8).
    ///
    /// # Errors
    /// [`Corrupt`] when the record cannot be read, or has a field that cannot be sent.
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

/// The stored response with the marks of a replay (HTTP-8), in one pass over its record.
fn replay_response(stored: StoredRecord<'_>) -> Result<Response<ReplayBody>, Corrupt> {
    let record = stored.bytes;
    let (mut reader, status, tombstone) = StoredReader::open(record)?;
    if tombstone {
        return Err(Corrupt::bad_field());
    }
    // Cache-Control, the mark, and Trailer.
    let mut headers = map_of(stored, &mut reader, 3)?;
    let trailers = map_of(stored, &mut reader, 0)?;
    let body_len = reader.varint()?;
    reader.ends_after(body_len)?;
    let full = |_| Corrupt::too_many_fields();
    // Replaces a stored value.
    headers.try_insert(CACHE_CONTROL, NO_STORE).map_err(full)?;
    headers.try_insert(REPLAYED, HeaderValue::from_static("true")).map_err(full)?;
    let trailers = match trailers.is_empty() {
        true => None,
        false => {
            let names = trailer_field(trailers.keys().map(HeaderName::as_str));
            let names = HeaderValue::try_from(names).map_err(|_| Corrupt::bad_field())?;
            headers.try_insert(TRAILER, names).map_err(full)?;
            Some(Box::new(trailers))
        }
    };
    let mut response =
        Response::new(ReplayBody::new(record.slice(record.len() - body_len..), trailers));
    *response.status_mut() = StatusCode::from_u16(status).map_err(|_| Corrupt::bad_field())?;
    *response.headers_mut() = headers;
    Ok(response)
}

/// The next section of lines as fields, with capacity for `spare` more.
fn map_of(
    stored: StoredRecord<'_>,
    reader: &mut StoredReader<'_>,
    spare: usize,
) -> Result<HeaderMap, Corrupt> {
    let count = reader.count()?;
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

/// Makes an answer's framing fit a body that was put together from its pieces: hyper trusts the
/// fields that it finds, so a `Transfer-Encoding` of another server or a wrong `Content-Length`
/// would break the connection (HTTP-6, HTTP-9). An empty body may stand for a longer one (HEAD,
/// 304).
pub(crate) fn reframe(headers: &mut HeaderMap, length: usize) {
    remove_in_order(headers, &TRANSFER_ENCODING);
    let mut said = headers.get_all(CONTENT_LENGTH).iter();
    let fits = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.parse() == Ok(length));
    if length > 0 && !said.all(fits) {
        remove_in_order(headers, &CONTENT_LENGTH);
    }
}

/// Who decided about the sensitive fields of an answer (HTTP-9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sensitive<'a> {
    /// Nobody: they stay out, and this scope is warned about.
    Unstored { scope: &'a str },
    /// A hook that has seen the fields.
    Stored,
}

impl Inner {
    /// The lines of an answer that are stored, in its order (HTTP-8, HTTP-9).
    pub(crate) fn stored_lines<'a>(
        &self,
        headers: &'a HeaderMap,
        exchange: Exchange,
        sensitive: Sensitive<'_>,
    ) -> Vec<StoredLine<'a>> {
        let connection = ConnectionNames::parse(connection_lines(headers));
        self.judged_lines(headers, &connection, exchange, sensitive)
    }

    /// As [`stored_lines`](Self::stored_lines), of its trailers: what the header fields say of the
    /// connection counts for them too.
    pub(crate) fn stored_trailers<'a>(
        &self,
        trailers: &'a HeaderMap,
        headers: &HeaderMap,
        exchange: Exchange,
        sensitive: Sensitive<'_>,
    ) -> Vec<StoredLine<'a>> {
        let connection =
            ConnectionNames::parse(connection_lines(headers).chain(connection_lines(trailers)));
        self.judged_lines(trailers, &connection, exchange, sensitive)
    }

    fn judged_lines<'a>(
        &self,
        headers: &'a HeaderMap,
        connection: &ConnectionNames,
        exchange: Exchange,
        sensitive: Sensitive<'_>,
    ) -> Vec<StoredLine<'a>> {
        let is_stored =
            |name: &str| match (self.fields.judge(name, connection, exchange), sensitive) {
                (FieldVerdict::Store, _) | (FieldVerdict::Sensitive, Sensitive::Stored) => true,
                (FieldVerdict::Sensitive, Sensitive::Unstored { scope }) => {
                    self.warn_unstored(scope, name);
                    false
                }
                (FieldVerdict::Drop | FieldVerdict::Forged, _) => false,
            };
        let lines = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        lines.filter(|(name, _)| is_stored(name)).collect()
    }
}

fn connection_lines(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes)
}

/// Stored lines as a map, for a hook to edit.
pub(crate) fn to_map(lines: &[StoredLine<'_>]) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(lines.len());
    for (name, value) in lines {
        // They came out of a map, so they go into one.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
        {
            map.append(name, value);
        }
    }
    map
}
