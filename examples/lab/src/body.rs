// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scripted response bodies: whole, in pieces, with trailers, or cut off.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::HeaderMap;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// A body of frames that are sent one after the other.
#[derive(Debug)]
pub(crate) struct Scripted {
    frames: VecDeque<Result<Frame<Bytes>, std::io::Error>>,
    /// The remaining length in bytes, if the body declares its length.
    known: Option<u64>,
}

impl Scripted {
    pub(crate) fn whole(data: Bytes) -> Self {
        Self { known: Some(data.len() as u64), frames: VecDeque::from([Ok(Frame::data(data))]) }
    }

    pub(crate) fn pieces(data: &Bytes) -> Self {
        let size = data.len().div_ceil(4).max(1);
        let frames = (0..data.len()).step_by(size).map(|at| {
            let end = (at + size).min(data.len());
            Ok(Frame::data(data.slice(at..end)))
        });
        Self { frames: frames.collect(), known: None }
    }

    pub(crate) fn with_trailers(mut self, trailers: HeaderMap) -> Self {
        self.known = None;
        self.frames.push_back(Ok(Frame::trailers(trailers)));
        self
    }

    /// Creates a body that sends half of the data, then an error.
    pub(crate) fn broken(data: &Bytes) -> Self {
        let mut body = Self::pieces(data);
        body.frames.truncate(2);
        body.frames
            .push_back(Err(std::io::Error::other("the script requested that the body ends early")));
        body
    }
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = self.frames.pop_front();
        if let (Some(left), Some(Ok(frame))) = (self.known, &frame) {
            let sent = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.known = Some(left.saturating_sub(sent));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.known.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
