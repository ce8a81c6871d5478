// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers are complete when the middleware returns them.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use reqwest::Body;
use retryproof_client::{CallError, ErrorKind, IdempotentResponse as _};
use tokio::time::timeout;

use crate::server::{Pieces, Reply, Server, URL, Unending, with};

fn data(bytes: &'static [u8]) -> Result<Frame<Bytes>, io::Error> {
    Ok(Frame::data(Bytes::from_static(bytes)))
}

fn broken() -> Result<Frame<Bytes>, io::Error> {
    Err(io::Error::from(io::ErrorKind::ConnectionReset))
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_is_asked_for_again() {
    let server = Server::with([
        with(201, &[], Pieces::body([data(b"rec"), broken()])),
        with(503, &[("content-type", "application/problem+json")], Pieces::body([broken()])),
        with(
            201,
            &[("idempotent-replayed", "true"), ("x-a", "1")],
            Pieces::body([data(b"rec"), data(b"eipt")]),
        ),
    ]);
    let answer = server.client(|b| b).post(URL).send().await.unwrap();
    assert!(answer.is_replay());
    assert_eq!(answer.call().unwrap().attempts, 3);
    assert_eq!((answer.url().as_str(), &answer.headers()["x-a"]), (URL, &"1".parse().unwrap()));
    assert_eq!(answer.content_length(), Some(7));
    assert_eq!(answer.text().await.unwrap(), "receipt");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_always_breaks_off_is_none() {
    let server = Server::with((0..3).map(|_| with(201, &[], Pieces::body([broken()]))));
    let error = server.client(|b| b.attempts(3)).post(URL).send().await.unwrap_err();
    let ours = CallError::of(&error).unwrap();
    assert_eq!((ours.kind(), ours.attempts()), (ErrorKind::GaveUp, 3));
    assert!(ours.transport().is_some_and(|error| !error.is_connect()), "{ours:?}");
    assert_eq!(
        error.to_string(),
        "the call got no answer in 3 attempts: the last attempt failed, and no attempts are left"
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stalls_is_asked_for_again() {
    let stalled = || with(201, &[], Body::wrap(Unending(Some(Bytes::from_static(b"rec")))));
    let server = Server::with([stalled(), with(201, &[], "receipt")]);
    let answer = server.client(|b| b).post(URL).send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "receipt");
}

#[tokio::test(start_paused = true)]
async fn http_9_trailers_stay() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "7".parse().unwrap());
    let body = Pieces::body([data(b"a"), data(b"b"), Ok(Frame::trailers(trailers.clone()))]);
    let server = Server::with([with(200, &[], body)]);
    let answer = server.client(|b| b).post(URL).send().await.unwrap();
    let collected = Body::from(answer).collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
    assert_eq!(collected.to_bytes(), "ab");
}

#[tokio::test(start_paused = true)]
async fn http_13_what_is_too_long_to_be_held_arrives_as_a_stream() {
    let pieces = || Pieces::body([data(b"12345"), data(b"67890"), data(b"abc")]);
    let client = |server: &Server| server.client(|b| b.held_bytes(8));
    // The first answer declares a length above the limit. The second declares no length, so the
    // client notices only while it reads the body.
    for headers in [&[("content-length", "13")][..], &[]] {
        let server = Server::with([with(200, headers, pieces())]);
        let answer = client(&server).post(URL).send().await.unwrap();
        assert_eq!(answer.text().await.unwrap(), "1234567890abc");
    }
    // If a body that is too long breaks off, the caller has to notice it.
    let body = Pieces::body([data(b"1234567890"), broken()]);
    let server = Server::with([with(200, &[], body)]);
    let answer = client(&server).post(URL).send().await.unwrap();
    assert!(answer.text().await.is_err());
    assert_eq!(server.sent().len(), 1);
    // An answer whose length is exactly the limit is held, so the client notices that it breaks
    // off.
    let server = Server::with([with(200, &[], Pieces::body([data(b"12345678"), broken()]))]);
    assert!(server.client(|b| b.held_bytes(8).attempts(1)).post(URL).send().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn http_13_event_streams_and_downloads_without_a_key_are_not_waited_for() {
    let unending = || Body::wrap(Unending(Some(Bytes::from_static(b"event"))));
    let events = with(200, &[("content-type", "Text/Event-Stream; charset=utf-8")], unending());
    let server = Server::with([events, with(200, &[], unending())]);
    let client = server.client(|b| b);
    for request in [client.post(URL), client.get(URL)] {
        let answer =
            timeout(Duration::from_secs(1), request.send()).await.expect("it is returned at once");
        let mut answer = answer.unwrap();
        assert_eq!(answer.chunk().await.unwrap().as_deref(), Some(&b"event"[..]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_body_says_how_long_it_is_and_when_it_ends() {
    let server = Server::with([with(200, &[], "receipt"), with(204, &[], ""), Reply::Silence]);
    let client = server.client(|b| b);
    let body = Body::from(client.post(URL).send().await.unwrap());
    assert_eq!(body.size_hint().exact(), Some(7));
    assert!(!body.is_end_stream());
    let empty = Body::from(client.post(URL).send().await.unwrap());
    assert_eq!(empty.size_hint().exact(), Some(0));
}
