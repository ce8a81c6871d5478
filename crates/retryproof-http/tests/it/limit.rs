// SPDX-License-Identifier: MIT OR Apache-2.0
//! The application's own limit on bodies and the filter's limit: the smaller one applies (HTTP-4).

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::post as on_post;
use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;
use retryproof_http::{IdempotencyFilter, Policy};

use crate::world::{Annotated, Answer, Runs, STD, filter_with, post, send};

static POLICY: Policy = STD;

const MIB: usize = 1 << 20;

/// Creates two guarded routes, `/annotated` and `/layered`, that return the length of the request's
/// body. The filter's limit is `filters`, and the application's limit is `applications`.
fn app(filters: usize, applications: Option<DefaultBodyLimit>) -> (Router, Runs) {
    let filter: IdempotencyFilter = filter_with(|config| config.web.max_body_bytes = filters);
    let runs = Runs::default();
    let length = {
        let runs = runs.clone();
        move |body: Bytes| async move {
            runs.run();
            body.len().to_string()
        }
    };
    let layered = on_post(length.clone()).layer(filter.guard(Policy::new("layered")));
    let app = Router::new()
        .route("/annotated", on_post(Annotated(&POLICY, length)))
        .route("/layered", layered)
        .with_state(filter);
    (applications.into_iter().fold(app, |app, limit| app.layer(limit)), runs)
}

async fn answer(app: &Router, path: &str, length: usize) -> Answer {
    send(app, post(path, "k", "x".repeat(length))).await
}

#[tokio::test(start_paused = true)]
async fn http_4_a_smaller_limit_of_the_application_holds_with_a_key_too() {
    for path in ["/annotated", "/layered"] {
        let (app, runs) = app(MIB, Some(DefaultBodyLimit::max(2_000)));
        let refused = answer(&app, path, 600_000).await;
        assert_eq!(
            (refused.status, refused.code()),
            (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"),
            "{path}"
        );
        assert!(refused.text().contains("limit of 2000 bytes"), "{}", refused.text());
        // The body comes in pieces, without a declared length.
        let streamed = axum::body::Body::new(Pieces(3));
        assert_eq!(send(&app, post(path, "k", streamed)).await.code(), "body-too-large", "{path}");
        assert_eq!(runs.count(), 0, "nothing ran, and the key is free");
        assert_eq!(answer(&app, path, 2_000).await.text(), "2000", "{path}");
        assert!(answer(&app, path, 2_000).await.is_replay(), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_4_a_limit_of_the_application_for_small_bodies_holds_too() {
    for path in ["/annotated", "/layered"] {
        let (app, runs) = app(MIB, Some(DefaultBodyLimit::max(100)));
        assert_eq!(answer(&app, path, 101).await.status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
        assert_eq!(runs.count(), 0);
        assert_eq!(send(&app, post(path, "other", "x".repeat(100))).await.text(), "100", "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_4_a_smaller_limit_of_the_filter_holds_whatever_the_application_says() {
    for limit in [None, Some(DefaultBodyLimit::max(3 * MIB)), Some(DefaultBodyLimit::disable())] {
        for path in ["/annotated", "/layered"] {
            let (app, _) = app(MIB, limit);
            assert_eq!(answer(&app, path, MIB + 1).await.code(), "body-too-large", "{path}");
            assert_eq!(answer(&app, path, MIB).await.text(), MIB.to_string(), "{path}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http_4_axums_default_is_no_limit_of_the_application() {
    for (limit, large) in [
        (None, true),
        (Some(DefaultBodyLimit::disable()), true),
        // The limit is as large as the default, but set explicitly.
        (Some(DefaultBodyLimit::max(2 * MIB)), false),
        (Some(DefaultBodyLimit::max(3 * MIB + 1)), true),
    ] {
        for path in ["/annotated", "/layered"] {
            let (app, _) = app(4 * MIB, limit);
            let answer = answer(&app, path, 3 * MIB).await;
            let status = if large { StatusCode::OK } else { StatusCode::PAYLOAD_TOO_LARGE };
            assert_eq!(answer.status, status, "{path} {limit:?}");
        }
    }
}

/// A body of this many pieces, without a declared length.
struct Pieces(usize);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        Poll::Ready(left.map(|_| Ok(Frame::data(Bytes::from_static(&[b'x'; 900])))))
    }
}
