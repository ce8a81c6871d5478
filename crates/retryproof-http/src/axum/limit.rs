// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits on a request's body (HTTP-4). Before the grant, [`body_limit`] chooses the application's
//! `DefaultBodyLimit` or the filter's own limit, whichever is smaller. After the grant,
//! [`lift_body_limit`] raises axum's default limit for a longer body that the guard has admitted.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum_core::RequestExt as _;
use axum_core::body::Body;
use axum_core::extract::DefaultBodyLimit;
use bytes::Bytes;
use http::{Extensions, Request};
use http_body::{Body as _, Frame};

/// The limit of axum's extractors if the application sets no limit.
const AXUM_DEFAULT: usize = 2 << 20;

/// Returns the filter's limit, `own`, or the limit that the application set outside the guard,
/// whichever is smaller.
pub(crate) fn body_limit(extensions: &mut Extensions, own: usize) -> usize {
    match limit_of(extensions) {
        // This is axum's default, not a limit that the application set, so the filter's larger
        // limit applies.
        Some(AXUM_DEFAULT) if own > AXUM_DEFAULT && !is_set(extensions) => own,
        Some(limit) => own.min(limit),
        None => own,
    }
}

/// Raises axum's default limit to the length that the guard has admitted. Otherwise an extractor
/// might respond with 413, and a guard that is a layer would store that response.
pub(crate) fn lift_body_limit<B>(mut request: Request<B>, length: usize) -> Request<B> {
    if length > AXUM_DEFAULT {
        DefaultBodyLimit::max(length).apply(&mut request);
    }
    request
}

/// Returns the limit that applies, or `None` if the application has disabled the limit. axum does
/// not expose this limit, but the size hint of a limited body reveals it.
fn limit_of(extensions: &mut Extensions) -> Option<usize> {
    let mut probe = Request::new(Body::new(Unmeasured));
    std::mem::swap(probe.extensions_mut(), extensions);
    let mut limited = probe.with_limited_body();
    std::mem::swap(limited.extensions_mut(), extensions);
    limited.body().size_hint().upper().and_then(|limit| usize::try_from(limit).ok())
}

/// Whether the application has set a limit. If so, setting another limit replaces an extension
/// instead of adding one.
fn is_set(extensions: &Extensions) -> bool {
    let mut probe = Request::new(());
    *probe.extensions_mut() = extensions.clone();
    DefaultBodyLimit::disable().apply(&mut probe);
    probe.extensions().len() == extensions.len()
}

/// A body without a declared length: its size hint shows only the limit.
struct Unmeasured;

impl http_body::Body for Unmeasured {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(None)
    }
}
