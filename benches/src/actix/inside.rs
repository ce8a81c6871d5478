// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the instructions and allocations of calls straight into the app, without a socket.
//!
//! The body of a request is not ready at the first poll, because actix's connection polls a service
//! once before it reads the body, even if head and body arrived in one piece.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::App;
use actix_web::body::to_bytes;
use actix_web::dev::{Payload, Service as _};
use actix_web::error::PayloadError;
use actix_web::test::{TestRequest, init_service};
use actix_web::web::Bytes;
use futures_core::Stream;

use super::{Way, routes};
use crate::heap::{Heap, HeapCounter, answer};
use crate::http::load::Keys;
use crate::http::server::filters;

/// The numbers of the calls that are made in each way: first the calls that warm up, because the
/// first call of a path builds what later calls share, and then the calls that are counted.
const CALLS: [Range<u64>; 2] = [0..100, 100..10_100];

/// The ways to call the app. The first is the floor, with which the others are compared.
pub(super) const WAYS: [Way; 7] = [
    ("plain", "/plain", Keys::None),
    ("first, annotated", "/annotated", Keys::Fresh),
    ("first, middleware", "/wrapped", Keys::Fresh),
    ("replay, annotated", "/annotated", Keys::Same),
    ("replay, middleware", "/wrapped", Keys::Same),
    ("keyless, annotated", "/optional-annotated", Keys::None),
    ("keyless, middleware", "/optional-wrapped", Keys::None),
];

/// Prints the allocations of each way, with the way's number.
pub(super) fn count(heap: HeapCounter) -> Result<(), String> {
    let steps = WAYS.into_iter().flat_map(|way| CALLS.map(|calls| (way, calls)));
    let (mut before, mut number) = (Heap::default(), 0);
    call(steps, |calls| {
        let now = heap().ok_or("the counting allocator is not installed")?;
        if calls == CALLS[1] {
            answer(&number.to_string(), now.since(before, calls.end - calls.start).0);
            number += 1;
        }
        before = now;
        Ok(())
    })
}

/// Makes `COUNT` calls in the way with the number `WAY`, while callgrind counts the instructions.
pub(super) fn repeat(args: &[String]) -> Result<(), String> {
    let [way, count] = args else { return Err("usage: actix call WAY COUNT".into()) };
    let way = way
        .parse()
        .ok()
        .and_then(|number: usize| WAYS.get(number))
        .ok_or("actix call: unknown WAY")?;
    let count = count.parse().map_err(|_| "actix call: COUNT is not a number")?;
    call([(*way, 0..count)], |_| Ok(()))
}

/// Makes the calls of each step, and then passes their numbers to `done`.
fn call(
    steps: impl IntoIterator<Item = (Way, Range<u64>)>,
    mut done: impl FnMut(Range<u64>) -> Result<(), String>,
) -> Result<(), String> {
    let routes = routes(filters()?);
    actix_web::rt::System::new().block_on(async {
        let service = init_service(App::new().configure(routes)).await;
        for ((_, path, keys), calls) in steps {
            for number in calls.clone() {
                let mut request =
                    TestRequest::post().uri(path).insert_header(("content-length", "180"));
                let key = match keys {
                    Keys::None => None,
                    Keys::Same => Some("00000000-0000-4000-8000-000000000000".to_owned()),
                    Keys::Fresh => Some(format!("00000000-0000-4000-8001-{number:012}")),
                };
                if let Some(key) = key {
                    request = request.insert_header(("idempotency-key", key));
                }
                let mut request = request.to_request();
                let body = Late { body: Some(Bytes::from(vec![b'b'; 180])), asked: false };
                *request.payload() = Payload::Stream { payload: Box::pin(body) };
                let response = service.call(request).await.map_err(|error| error.to_string())?;
                if response.status() != 201 {
                    return Err(format!("{path} answered {}", response.status()));
                }
                let _ = to_bytes(response.into_body()).await.map_err(|error| error.to_string())?;
            }
            done(calls)?;
        }
        Ok(())
    })
}

/// A body that is not ready before the second poll.
struct Late {
    body: Option<Bytes>,
    asked: bool,
}

impl Stream for Late {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.asked {
            self.asked = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.body.take().map(Ok))
    }
}
