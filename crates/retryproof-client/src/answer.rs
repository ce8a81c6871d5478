// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collects an answer's body, so that a connection that breaks within the body counts as a failed
//! attempt, not as an error for the caller.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use reqwest::{Body, Response, ResponseBuilderExt as _};

use crate::problem::{self, Problem};

/// A body that first yields the collected part, and then the rest as it arrives.
struct HeldBody {
    data: Bytes,
    trailers: Option<HeaderMap>,
    rest: Option<Body>,
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        if !self.data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.data)))));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        let nothing_left = self.data.is_empty() && self.trailers.is_none();
        nothing_left && self.rest.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.data.len() as u64;
        let Some(rest) = &self.rest else { return SizeHint::with_exact(held) };
        let (rest, mut hint) = (rest.size_hint(), SizeHint::new());
        hint.set_lower(rest.lower().saturating_add(held));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(held)) {
            hint.set_upper(upper);
        }
        hint
    }
}

/// Whether the attempt waits for the whole body of this answer. Event streams, upgrades, and bodies
/// that declare more than `limit` bytes stay streams.
pub(crate) fn is_holdable(response: &Response, method: &Method, limit: usize) -> bool {
    let headers = response.headers();
    let is_events = problem::is_of_type(headers, "text/event-stream");
    // `Content-Length` counts compressed bytes, so a body can be larger than its `Content-Length`.
    // `hold` therefore also counts the bytes that it reads.
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let declared: Option<u64> = declared.and_then(|value| value.parse().ok());
    let is_large = declared.is_some_and(|length| length > limit as u64);
    let is_upgrade = response.status().is_informational() || method == Method::CONNECT;
    !is_events && !is_large && !is_upgrade
}

/// Reads the body to its end, or until more than `limit` bytes have been read. Any rest stays a
/// stream. If the whole body was read and is a problem document, also returns the problem's
/// members.
///
/// # Errors
/// Returns an error if the body breaks off before its end and before the limit.
pub(crate) async fn hold(
    response: Response,
    limit: usize,
) -> Result<(Response, Option<Problem>), reqwest::Error> {
    let url = response.url().clone();
    let (mut head, mut body) = http::Response::<Body>::from(response).into_parts();
    let (mut data, mut trailers) = (BytesMut::new(), None);
    let mut rest = None;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(bytes) => data.extend_from_slice(&bytes),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
        if data.len() > limit {
            rest = Some(body);
            break;
        }
    }
    let data = data.freeze();
    let is_problem = rest.is_none() && problem::is_problem(&head.headers);
    let problem = is_problem.then(|| problem::read(&data));
    // reqwest keeps the URL in an extension, which only this builder method can create.
    if let Ok(named) = http::Response::builder().url(url).body(()) {
        head.extensions.extend(named.into_parts().0.extensions);
    }
    let held = http::Response::from_parts(head, Body::wrap(HeldBody { data, trailers, rest }));
    Ok((held.into(), problem))
}
