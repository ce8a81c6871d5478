// SPDX-License-Identifier: MIT OR Apache-2.0
//! The application's `DefaultBodyLimit` and the filter's own limit: the smaller of the two holds
//! (HTTP-4).

use std::pin::Pin;
use std::task::{Context, Poll};

use axum_core::RequestExt as _;
use axum_core::body::Body;
use axum_core::extract::DefaultBodyLimit;
use bytes::Bytes;
use http::{Extensions, Request};
use http_body::{Body as _, Frame};

/// What axum's extractors take where the application says nothing. It is a default, and no limit of
/// the application's.
const HOSTS_DEFAULT: usize = 2 << 20;

/// The smaller of the filter's limit and of one that the application has set outside.
pub(crate) fn body_limit(extensions: &mut Extensions, own: usize) -> usize {
    match limit_of(extensions) {
        // Only here it matters whether the application has said it.
        Some(HOSTS_DEFAULT) if own > HOSTS_DEFAULT && !is_set(extensions) => own,
        Some(limit) => own.min(limit),
        None => own,
    }
}

/// Lets the extractors take what the guard has let in, where axum's default would refuse it: behind
/// a layer that answer would be stored.
pub(crate) fn lift_body_limit<B>(mut request: Request<B>, length: usize) -> Request<B> {
    if length > HOSTS_DEFAULT {
        DefaultBodyLimit::max(length).apply(&mut request);
    }
    request
}

/// The limit that is in force; `None` where it is disabled. axum does not tell it, but gives a body
/// that has it.
fn limit_of(extensions: &mut Extensions) -> Option<usize> {
    let mut probe = Request::new(Body::new(Unmeasured));
    std::mem::swap(probe.extensions_mut(), extensions);
    let mut limited = probe.with_limited_body();
    std::mem::swap(limited.extensions_mut(), extensions);
    limited.body().size_hint().upper().and_then(|limit| usize::try_from(limit).ok())
}

/// Whether the application has set a limit: then setting another adds nothing.
fn is_set(extensions: &Extensions) -> bool {
    let mut probe = Request::new(());
    *probe.extensions_mut() = extensions.clone();
    DefaultBodyLimit::disable().apply(&mut probe);
    probe.extensions().len() == extensions.len()
}

/// A body of any length.
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
