// SPDX-License-Identifier: MIT OR Apache-2.0
//! Responses that are sent without being collected: event streams, upgrades, and bodies that are
//! marked as streams or take too long.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::body::{BodySize, MessageBody};
use actix_web::dev::Payload;
use actix_web::error::{ErrorInternalServerError, PayloadError};
use actix_web::http::StatusCode;
use actix_web::http::header::CONTENT_LENGTH;
use actix_web::test;
use actix_web::web::Bytes;
use retryproof_actix::WithFate as _;
use retryproof_core::{IdempotencyConfig, IdempotencyEngine, Recorded};
use retryproof_http::{AnswerFate, IdempotencyFilter};
use retryproof_memory::MemoryStore;

use crate::world::{app, engine, filter, filter_on, post, read, send};

#[actix_web::test]
async fn http_13_a_stream_reaches_its_client_whole_and_is_not_replayable() {
    let app = app!(&filter(), || async {
        let events = futures_stream([
            Bytes::from_static(b"data: 1\n\n"),
            Bytes::from_static(b"data: 2\n\n"),
        ]);
        HttpResponse::Ok().content_type("text/event-stream").streaming(events)
    });
    let first = send(&app, post("/orders", "k").to_request()).await;
    assert_eq!(first.text(), "data: 1\n\ndata: 2\n\n");
    let again = send(&app, post("/orders", "k").to_request()).await;
    assert_eq!((again.status, &*again.code()), (409, "result-not-replayable"));
}

#[actix_web::test]
async fn http_7_a_body_that_is_marked_or_late_is_sent_as_it_comes() {
    struct Endless(bool);
    impl MessageBody for Endless {
        type Error = std::convert::Infallible;

        fn size(&self) -> BodySize {
            BodySize::Stream
        }

        fn poll_next(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Bytes, Self::Error>>> {
            match std::mem::replace(&mut self.0, true) {
                false => Poll::Ready(Some(Ok(Bytes::from_static(b"line\n")))),
                true => Poll::Pending,
            }
        }
    }
    let engine = engine();
    let mut web = engine.config().web.clone();
    web.collect_timeout = Duration::from_millis(50);
    let late = IdempotencyFilter::builder(engine).config(web).callers_share_keys().build().unwrap();
    // The handler's body never ends. The filter `late` stops waiting for it after 50 ms, because
    // the default limit is too long for this test.
    for (fate, filter) in [(AnswerFate::Stream, filter()), (AnswerFate::Store, late)] {
        let app = app!(&filter, move || async move {
            HttpResponse::Ok().message_body(Endless(false)).unwrap().with_fate(fate)
        });
        let call = test::call_service(&app, post("/orders", "k").to_request());
        let response =
            tokio::time::timeout(Duration::from_secs(4), call).await.expect("it is not waited for");
        assert_eq!(response.response().extensions().get::<Recorded>(), Some(&Recorded::Tombstone));
        let mut body = Box::pin(response.into_body());
        let line = poll_fn(|cx| body.as_mut().poll_next(cx)).await;
        assert_eq!(line.unwrap().ok().unwrap(), "line\n");
        assert_eq!(
            send(&app, post("/orders", "k").to_request()).await.code(),
            "result-not-replayable"
        );
    }
}

#[actix_web::test]
async fn http_13_a_late_body_of_known_length_keeps_its_length() {
    let engine = engine();
    let mut web = engine.config().web.clone();
    web.collect_timeout = Duration::from_millis(50);
    let late = IdempotencyFilter::builder(engine).config(web).callers_share_keys().build().unwrap();
    let app = app!(&late, || async {
        HttpResponse::Ok().insert_header((CONTENT_LENGTH, 10)).streaming(pausing())
    });
    let response = test::call_service(&app, post("/orders", "k").to_request()).await;
    assert_eq!(response.response().extensions().get::<Recorded>(), Some(&Recorded::Tombstone));
    let mut body = Box::pin(response.into_body());
    for (left, piece) in [(10, "first"), (5, "later")] {
        assert_eq!(body.size(), BodySize::Sized(left));
        let data = poll_fn(|cx| body.as_mut().poll_next(cx)).await;
        assert_eq!(data.unwrap().ok().unwrap(), piece);
    }
    assert!(poll_fn(|cx| body.as_mut().poll_next(cx)).await.is_none());
}

/// Returns a response of two pieces with a pause of 200 ms between them.
fn pausing() -> impl futures_core::Stream<Item = Result<Bytes, actix_web::Error>> {
    struct Pausing(std::array::IntoIter<&'static str, 2>, Pin<Box<actix_web::rt::time::Sleep>>);
    impl futures_core::Stream for Pausing {
        type Item = Result<Bytes, actix_web::Error>;
        fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            if self.0.len() == 1 {
                std::task::ready!(self.1.as_mut().poll(cx));
            }
            Poll::Ready(self.0.next().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))))
        }
    }
    let pause = Box::pin(actix_web::rt::time::sleep(Duration::from_millis(200)));
    Pausing(["first", "later"].into_iter(), pause)
}

fn futures_stream<const N: usize>(
    pieces: [Bytes; N],
) -> impl futures_core::Stream<Item = Result<Bytes, actix_web::Error>> {
    struct Pieces<const N: usize>(std::array::IntoIter<Bytes, N>);
    impl<const N: usize> futures_core::Stream for Pieces<N> {
        type Item = Result<Bytes, actix_web::Error>;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Ready(self.0.next().map(Ok))
        }
    }
    Pieces(pieces.into_iter())
}

/// Returns a request body or a response that breaks off after its first bytes.
fn breaking_off<E: 'static>(
    error: fn() -> E,
) -> impl futures_core::Stream<Item = Result<Bytes, E>> + 'static {
    struct BreaksOff<E>(bool, fn() -> E);
    impl<E> futures_core::Stream for BreaksOff<E> {
        type Item = Result<Bytes, E>;
        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Poll::Ready(Some(match std::mem::replace(&mut self.0, true) {
                false => Ok(Bytes::from_static(b"begun")),
                true => Err((self.1)()),
            }))
        }
    }
    BreaksOff(false, error)
}

#[actix_web::test]
async fn ctx_5_http_11_a_body_that_breaks_off_is_answered_as_with_the_guard_on() {
    for is_on in [true, false] {
        let mut config = IdempotencyConfig::default();
        config.scopes.entry("orders".to_owned()).or_default().enabled = Some(is_on);
        let engine = IdempotencyEngine::builder(MemoryStore::new()).config(config).build().unwrap();
        let app = app!(&filter_on(&engine), |body: Bytes| async move {
            assert_ne!(body, "begun", "a part of a body reaches no handler");
            HttpResponse::Ok().streaming(breaking_off(|| ErrorInternalServerError("reset")))
        });
        let mut upload = post("/orders", "upload").to_request();
        let payload = Box::pin(breaking_off(|| PayloadError::Incomplete(None)));
        *upload.payload() = Payload::Stream { payload };
        let upload = send(&app, upload).await;
        assert_eq!((upload.status, &*upload.code()), (400, "body-unreadable"), "{is_on}");
        let download = send(&app, post("/orders", "download").to_request()).await;
        assert_eq!((download.status, &*download.code()), (500, "response-failed"), "{is_on}");
    }
}

#[actix_web::test]
async fn http_13_an_upgrade_keeps_what_the_head_knows_beside_its_fields() {
    let app = app!(&filter(), || async {
        HttpResponse::SwitchingProtocols().upgrade("echo").reason("As You Wish").finish()
    });
    let first = test::call_service(&app, post("/orders", "k").to_request()).await;
    assert_eq!(first.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert!(first.response().upgrade());
    assert_eq!(first.response().head().reason(), "As You Wish");
    assert_eq!(first.response().extensions().get::<Recorded>(), Some(&Recorded::Tombstone));
    assert_eq!(
        read(test::call_service(&app, post("/orders", "k").to_request()).await).await.status,
        409
    );
}
