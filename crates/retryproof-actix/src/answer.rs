// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers between actix and the guard. A handler's own head goes to the connection as it was: it
//! knows more than fields (an upgrade, a reason). What the guard puts in its place is made anew.

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
use retryproof_http::adapter::{FrameworkResponse, NoTx, Pieces, Ran, StoredRecord};
use retryproof_http::{AnswerFate, Corrupt, ReplayBody};

use crate::body::{Answer, LengthAlone, Outgoing};
use crate::head::{COMMON, REPLAYED, actix_headers, headers};

/// The head of the handler's answer, kept while the guard records its body.
#[derive(Default)]
pub(crate) struct Own {
    head: Cell<Option<HttpResponse<()>>>,
    lines: Cell<usize>,
    /// It had no body, which is less than an empty one.
    bodiless: Cell<bool>,
}

impl Own {
    /// A handler's answer for the guard.
    pub(crate) fn part<B: MessageBody>(&self, response: HttpResponse<B>) -> Response<Answer<B>> {
        let (mut head, body) = response.into_parts();
        let fate = take_mark(&mut head);
        let told = head.extensions_mut().remove::<NoTx>();
        let status = http::StatusCode::from_u16(head.status().as_u16()).unwrap_or_default();
        let fields = headers(head.headers());
        self.bodiless.set(body.size() == BodySize::None);
        self.lines.set(fields.len());
        self.head.set(Some(head));
        let mut response = Response::new(Answer::new(body));
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        if let Some(fate) = fate {
            response.extensions_mut().insert(fate);
        }
        if let Some(told) = told {
            response.extensions_mut().insert(told);
        }
        response
    }

    /// The guard's answer for the connection.
    pub(crate) fn join<B>(
        &self,
        Ran { response, is_handlers, recorded }: Ran<Answer<B>>,
    ) -> HttpResponse
    where
        B: MessageBody + 'static,
    {
        let (parts, body) = response.into_parts();
        let body = Pieces::from(body);
        let Some(mut head) = self.head.take().filter(|_| is_handlers) else {
            let body = match body {
                Pieces::Whole(data, _) => BoxBody::new(data),
                Pieces::Streaming(body) => BoxBody::new(Outgoing::new(body)),
            };
            return made(parts.status, &parts.headers, body);
        };
        if self.lines.get() != parts.headers.len() {
            // Something was taken off: a forged mark, or framing that does not fit.
            head.headers_mut().clear();
            actix_headers(&parts.headers, head.headers_mut());
        }
        if let Some(recorded) = recorded {
            head.extensions_mut().insert(recorded);
        }
        head.set_body(match body {
            Pieces::Whole(data, _) if data.is_empty() && self.bodiless.get() => {
                BoxBody::new(NoBody::new())
            }
            Pieces::Whole(data, _) => BoxBody::new(data),
            Pieces::Streaming(body) => BoxBody::new(Outgoing::new(body)),
        })
    }
}

/// Takes the mark of an answer off it, and what was recorded of an inner call: both belong to the
/// call whose handler set them (HTTP-7).
pub(crate) fn take_mark<B>(head: &mut HttpResponse<B>) -> Option<AnswerFate> {
    let mut extensions = head.extensions_mut();
    extensions.remove::<Recorded>();
    extensions.remove()
}

/// An answer without a run.
pub(crate) struct Given(pub(crate) HttpResponse);

/// A replay on its way from its record.
struct Replaying {
    response: HttpResponse<()>,
    /// To HEAD: the length of a body that is not there.
    length: Option<u64>,
}

impl FrameworkResponse for Given {
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
            // In the place of a stored one there is that of a replay.
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
        Ok(Self(response.set_body(match length {
            Some(length) if length > 0 && body.is_empty() => BoxBody::new(LengthAlone(length)),
            _ => BoxBody::new(body),
        })))
    }
}

/// An answer that is the filter's from the beginning.
pub(crate) fn of_filter(response: Response<ReplayBody>) -> HttpResponse {
    let (parts, body) = response.into_parts();
    match Pieces::<ReplayBody>::from(body) {
        Pieces::Whole(data, _) => made(parts.status, &parts.headers, BoxBody::new(data)),
        Pieces::Streaming(_) => made(parts.status, &parts.headers, BoxBody::new(NoBody::new())),
    }
}

/// A head of fields alone. Trailers have no place in an answer of actix, so they are not announced
/// either.
fn made(status: http::StatusCode, fields: &HeaderMap, body: BoxBody) -> HttpResponse {
    let status = StatusCode::from_u16(status.as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::with_body(status, body);
    actix_headers(fields, response.headers_mut());
    if fields.contains_key(TRAILER) {
        response.headers_mut().remove(actix_web::http::header::TRAILER);
    }
    if fields.get(CONNECTION).is_some_and(|value| value == "close") {
        // actix makes this field from the head's own word.
        response.headers_mut().remove(actix_web::http::header::CONNECTION);
        response.head_mut().set_connection_type(ConnectionType::Close);
    }
    // To HEAD: the length of a body that is not there.
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
