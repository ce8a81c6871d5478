// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts responses between actix and the guard. A handler's response keeps its head, which holds
//! more than header fields, for example an upgrade or a reason phrase. The guard can change the
//! header fields in that head. If the guard replaces the response, the new response gets a new
//! head.

use std::cell::Cell;

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody, None as NoBody};
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, HeaderName as ActixName, HeaderValue as ActixValue,
};
use actix_web::http::{ConnectionType, StatusCode};
use bytes::Bytes;
use http::header::{CONNECTION, TRAILER};
use http::{HeaderMap, Response};
use retryproof_core::Recorded;
use retryproof_http::adapter::{BodyParts, FrameworkResponse, HandlerResponse, NoTx, StoredRecord};
use retryproof_http::{AnswerFate, Corrupt, ReplayBody, Served};

use crate::body::{ActixBody, HandlerBody, LengthAlone};
use crate::head::{COMMON, REPLAYED, actix_headers, have_same_lines, headers};

/// The head of the handler's response, kept while the guard records the response's body.
#[derive(Default)]
pub(crate) struct KeptHead {
    head: Cell<Option<HttpResponse<()>>>,
    /// Whether the response's body size is [`BodySize::None`], which differs from an empty body.
    bodiless: Cell<bool>,
}

impl KeptHead {
    /// Keeps the head of the handler's response, and converts the response for the guard.
    pub(crate) fn split<B: MessageBody>(
        &self,
        response: HttpResponse<B>,
    ) -> Response<HandlerBody<B>> {
        let (mut head, body) = response.into_parts();
        let fate = take_fate(&mut head);
        let no_tx = head.extensions_mut().remove::<NoTx>();
        let status = http::StatusCode::from_u16(head.status().as_u16()).unwrap_or_default();
        let fields = headers(head.headers());
        self.bodiless.set(body.size() == BodySize::None);
        self.head.set(Some(head));
        let mut response = Response::new(HandlerBody::new(body));
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        if let Some(fate) = fate {
            response.extensions_mut().insert(fate);
        }
        if let Some(no_tx) = no_tx {
            response.extensions_mut().insert(no_tx);
        }
        response
    }

    /// Converts the guard's response back into an actix response.
    pub(crate) fn join<B>(
        &self,
        HandlerResponse { response, is_handlers, recorded, served }: HandlerResponse<
            HandlerBody<B>,
        >,
    ) -> HttpResponse
    where
        B: MessageBody + 'static,
    {
        let (parts, body) = response.into_parts();
        let body = BodyParts::from(body);
        let Some(mut head) = self.head.take().filter(|_| is_handlers) else {
            let body = match body {
                BodyParts::Whole(data, _) => BoxBody::new(data),
                BodyParts::Streaming(body) => BoxBody::new(ActixBody::new(body)),
            };
            return with_new_head(parts.status, &parts.headers, body, Some(served));
        };
        if !have_same_lines(head.headers(), &parts.headers) {
            // Copy the header fields again, because the guard changed them. The guard
            // removes, for example, replay marks and framing that does not match the body.
            head.headers_mut().clear();
            actix_headers(&parts.headers, head.headers_mut());
        }
        if let Some(recorded) = recorded {
            head.extensions_mut().insert(recorded);
        }
        head.extensions_mut().insert(served);
        head.set_body(match body {
            BodyParts::Whole(data, _) if data.is_empty() && self.bodiless.get() => {
                BoxBody::new(NoBody::new())
            }
            BodyParts::Whole(data, _) => BoxBody::new(data),
            BodyParts::Streaming(body) => BoxBody::new(ActixBody::new(body)),
        })
    }
}

/// Removes the fate and an inner guarded call's `Recorded` from a response, so that neither affects
/// an outer call (HTTP-7). Returns the fate.
pub(crate) fn take_fate<B>(head: &mut HttpResponse<B>) -> Option<AnswerFate> {
    let mut extensions = head.extensions_mut();
    extensions.remove::<Recorded>();
    extensions.remove()
}

/// Marks a response as [`Served::Unguarded`], unless an inner guard already marked it (HTTP-18).
pub(crate) fn mark_unguarded<B>(head: &mut HttpResponse<B>) {
    let mut extensions = head.extensions_mut();
    if !extensions.contains::<Served>() {
        extensions.insert(Served::Unguarded);
    }
}

/// A response that is sent without running the handler.
pub(crate) struct ActixResponse(pub(crate) HttpResponse);

/// A replay's response while it is being built from the record.
struct Replaying {
    response: HttpResponse<()>,
    /// The recorded `Content-Length`. The replay to a HEAD request declares this length although
    /// its body is empty.
    length: Option<u64>,
}

impl FrameworkResponse for ActixResponse {
    fn from_refusal(response: Response<ReplayBody>) -> Self {
        Self(of_filter(response))
    }

    fn from_record(record: StoredRecord<'_>) -> Result<Self, Corrupt> {
        let start = |status, fields| {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let mut response = HttpResponse::with_body(status, ());
            response.headers_mut().reserve(fields + 2);
            Replaying { response, length: None }
        };
        let field = |replaying: &mut Replaying, name: Result<usize, &str>, value: Bytes| {
            let name = match name {
                Ok(code) => COMMON.get(code)?.clone(),
                Err(name) => ActixName::from_bytes(name.as_bytes()).ok()?,
            };
            // Skip the stored `Cache-Control`, because every replay is sent with `no-store`.
            if name == CACHE_CONTROL {
                return Some(());
            }
            let value = ActixValue::from_maybe_shared(value).ok()?;
            if name == CONTENT_LENGTH {
                replaying.length = value.to_str().ok().and_then(|length| length.parse().ok());
            }
            replaying.response.headers_mut().append(name, value);
            Some(())
        };
        let (Replaying { mut response, length }, body) = record.read(start, field)?;
        let headers = response.headers_mut();
        headers.append(CACHE_CONTROL, ActixValue::from_static("no-store"));
        headers.append(REPLAYED.clone(), ActixValue::from_static("true"));
        response.extensions_mut().insert(Served::Replayed);
        Ok(Self(response.set_body(match length {
            Some(length) if length > 0 && body.is_empty() => BoxBody::new(LengthAlone(length)),
            _ => BoxBody::new(body),
        })))
    }
}

/// Converts one of the filter's own responses for actix.
pub(crate) fn of_filter(response: Response<ReplayBody>) -> HttpResponse {
    let (parts, body) = response.into_parts();
    let body = match BodyParts::<ReplayBody>::from(body) {
        BodyParts::Whole(data, _) => BoxBody::new(data),
        BodyParts::Streaming(_) => BoxBody::new(NoBody::new()),
    };
    with_new_head(parts.status, &parts.headers, body, parts.extensions.get().copied())
}

/// Builds a response with a new head. The `Trailer` field is removed, because actix sends no
/// trailers.
fn with_new_head(
    status: http::StatusCode,
    fields: &HeaderMap,
    body: BoxBody,
    served: Option<Served>,
) -> HttpResponse {
    let status = StatusCode::from_u16(status.as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::with_body(status, body);
    actix_headers(fields, response.headers_mut());
    if let Some(served) = served {
        response.extensions_mut().insert(served);
    }
    if fields.contains_key(TRAILER) {
        response.headers_mut().remove(actix_web::http::header::TRAILER);
    }
    if fields.get(CONNECTION).is_some_and(|value| value == "close") {
        // actix writes the `Connection` field itself, from the connection type.
        response.headers_mut().remove(actix_web::http::header::CONNECTION);
        response.head_mut().set_connection_type(ConnectionType::Close);
    }
    // Keep the length that a response to a HEAD request declares, although the response has no
    // body.
    let length = response
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok());
    match (length, response.body().size()) {
        (Some(length), BodySize::Sized(0)) if length > 0 => {
            response.set_body(BoxBody::new(LengthAlone(length)))
        }
        _ => response,
    }
}
