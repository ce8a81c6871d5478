// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests how a request body is read (HTTP-4, HTTP-5).

use std::collections::VecDeque;
use std::pin::pin;

use http_body_util::{BodyExt as _, Limited};

use super::*;
use crate::protocol::decide::OversizeBody;
use crate::protocol::fingerprint::{
    FingerprintAlgorithm, FingerprintHasher, RequestParts, fingerprint,
};

/// A body with the given frames and no known length.
struct Frames(VecDeque<Result<Frame<Bytes>, BoxError>>);

impl Frames {
    fn of<const N: usize>(pieces: [&'static [u8]; N]) -> Self {
        Self(pieces.into_iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece)))).collect())
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.0.pop_front())
    }
}

/// A body that is pending at each poll for which `halts` returns true. `halts` gets the number of
/// earlier polls.
struct Halting {
    frames: Frames,
    polls: u32,
    halts: fn(u32) -> bool,
}

impl Body for Halting {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.polls += 1;
        if (self.halts)(self.polls - 1) {
            Poll::Pending
        } else {
            Pin::new(&mut self.frames).poll_frame(cx)
        }
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a body of ready frames should be collected in one poll"),
    }
}

#[test]
fn http_4_exactly_the_limit_passes_and_one_byte_more_does_not() {
    for (limit, fits) in [(6, true), (5, false), (0, false)] {
        let collected = now(read_request(Frames::of([b"abc", b"", b"def"]), limit, || None));
        assert_eq!(
            collected.map(|c| c.data).ok(),
            fits.then(|| Bytes::from_static(b"abcdef")),
            "{limit}"
        );
    }
    assert!(now(read_request(Frames::of([]), 0, || None)).is_ok_and(|c| c.data.is_empty()));
    assert_eq!(ReplayBody::from(Bytes::from_static(b"abc")).size_hint().exact(), Some(3));
}

#[test]
fn http_4_a_limit_outside_is_found_through_the_source_chain() {
    #[derive(Debug)]
    struct Wrapped(BoxError);
    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("wrapped")
        }
    }
    impl StdError for Wrapped {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&*self.0)
        }
    }
    let limited = Limited::new(Frames::of([b"abc", b"def"]), 4);
    let body = limited.map_err(|error| Box::new(Wrapped(Box::new(Wrapped(error)))) as BoxError);
    assert_eq!(
        now(read_request(body, 100, || None)).err(),
        Some(BodyError::TooLarge(OversizeBody::Partly))
    );
}

#[test]
fn http_5_a_broken_upload_is_unreadable() {
    let mut body = Frames::of([b"abc"]);
    body.0.push_back(Err("reset".into()));
    assert_eq!(now(read_request(body, 100, || None)).err(), Some(BodyError::Unreadable));
}

#[test]
fn http_5_a_single_frame_is_not_copied_and_trailers_are_kept() {
    let whole = Bytes::from_static(b"abc");
    let mut body = Frames(VecDeque::from([Ok(Frame::data(whole.clone()))]));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    body.0.push_back(Ok(Frame::trailers(trailers.clone())));
    let collected = now(read_request(body, 3, || None)).unwrap();
    assert_eq!(collected.data.as_ptr(), whole.as_ptr());
    assert_eq!(collected.trailers.as_deref(), Some(&trailers));
    let again = now(ReplayBody::new(collected.data, collected.trailers).collect()).unwrap();
    assert_eq!(again.trailers(), Some(&trailers));
    assert_eq!(again.to_bytes(), whole);
}

#[test]
fn fp_3_the_digest_of_a_streamed_body_is_that_of_the_whole() {
    let hasher = || Some(FingerprintHasher::new(FingerprintAlgorithm::Request, "POST", "/a"));
    let there = now(read_request(Frames::of([b"abc", b"de", b"f"]), 100, hasher)).unwrap();
    assert_eq!(there.fingerprint, None, "a body that is complete at once should be hashed later");
    // The body is pending before each frame and before its end.
    let body = Halting {
        frames: Frames::of([b"abc", b"de", b"f"]),
        polls: 0,
        halts: |before| before % 2 == 0,
    };
    let mut reading = pin!(read_request(body, 100, hasher));
    let mut polls = 0;
    let collected = loop {
        polls += 1;
        if let Poll::Ready(collected) =
            reading.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()))
        {
            break collected.unwrap();
        }
    };
    assert_eq!((polls, &collected.data[..]), (4, &b"abcdef"[..]));
    assert_eq!(
        collected.fingerprint,
        Some(fingerprint(
            FingerprintAlgorithm::Request,
            &RequestParts::new("POST", "/a", b"abcdef")
        ))
    );
}

#[test]
fn fp_3_a_body_that_comes_late_and_whole_is_hashed_in_one_go() {
    let whole = Bytes::from_static(b"abc");
    // The first poll finds no frame, as in a server that polls its service before it reads the
    // body.
    let frames = Frames(VecDeque::from([Ok(Frame::data(whole.clone()))]));
    let body = Halting { frames, polls: 0, halts: |before| before == 0 };
    let mut reading = pin!(read_request(body, 3, || -> Option<FingerprintHasher> {
        panic!("the body came in one frame, so it needs no hasher")
    }));
    let cx = &mut Context::from_waker(std::task::Waker::noop());
    assert!(reading.as_mut().poll(cx).is_pending());
    let Poll::Ready(collected) = reading.poll(cx) else { panic!("the body should be there") };
    let collected = collected.unwrap();
    assert_eq!((collected.data.as_ptr(), collected.fingerprint), (whole.as_ptr(), None));
}

#[test]
fn http_9_a_body_with_trailers_has_no_exact_length() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    let body = ReplayBody::new(Bytes::from_static(b"ab"), Some(Box::new(trailers)));
    assert_eq!(body.size_hint().exact(), None);
    assert!(!body.is_end_stream());
    assert_eq!(
        ReplayBody::new(Bytes::from_static(b"ab"), Some(Box::default())).size_hint().exact(),
        Some(2)
    );
}

#[test]
fn id_4_debug_of_a_body_shows_its_length_alone() {
    let body = ReplayBody::from(Bytes::from_static(b"canary"));
    assert_eq!(format!("{body:?}"), "ReplayBody(6 bytes)");
    assert!(!format!("{:?}", GuardedBody::<ReplayBody>::replay(body)).contains("canary"));
}

#[test]
fn http_8_a_replayed_body_ends_with_its_last_part_and_comes_apart_whole() {
    type Guarded = GuardedBody<http_body_util::Full<Bytes>>;
    assert!(Guarded::replay(ReplayBody::default()).is_end_stream());
    assert!(Guarded::inner(Bytes::new().into()).is_end_stream());
    assert!(!Guarded::inner(Bytes::from_static(b"a").into()).is_end_stream());
    let trailers = Box::new(HeaderMap::from_iter([(
        http::HeaderName::from_static("x-sum"),
        http::HeaderValue::from_static("7"),
    )]));
    let body = ReplayBody::new(Bytes::from_static(b"abc"), Some(trailers.clone()));
    assert!(!Guarded::replay(body).is_end_stream());
    let body = ReplayBody::new(Bytes::from_static(b"abc"), Some(trailers.clone()));
    assert_eq!(body.into_parts(), (Bytes::from_static(b"abc"), Some(trailers)));
}
