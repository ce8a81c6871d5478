// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checkout page at `/`. A user can press Pay several times, cut answers and change the amount,
//! and sees how the server handles each request.
//!
//! The page is a demonstration outside the guard. It uses a middleware around the guarded route
//! ([`watch`]), an observer ([`feed`]) and its own sockets ([`wire`]). `serve --no-page` leaves all
//! of them out. The page controls `POST /payments` by headers, because headers are not part of a
//! request's fingerprint:
//!
//! - `X-Demo-Cut: true` drops the connection when the answer is ready, before its first byte is
//!   sent.
//! - `X-Demo-Delay: 2000` sets the time that the payment provider takes, in milliseconds.
//! - `X-Demo-Attempt: …` appears in the feed, so that the page recognises its own requests.

mod feed;
mod watch;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

pub(crate) use feed::Feed;
pub(crate) use watch::Delay;
pub(crate) use wire::{Wire, Wires};

/// The path, type and text of each file that a browser fetches. The page loads nothing else, so it
/// works without a network.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/app.css", "text/css; charset=utf-8", include_str!("../page/app.css")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("../page/app.js")),
    ("/icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
];

/// Forbids inline scripts and styles, other origins, and text that is turned into markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

const SECURITY: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Returns the service with the page added.
pub(crate) fn around(service: Router, feed: &Arc<Feed>) -> Router {
    let mut page = Router::new().route("/events", get(events)).with_state(Arc::clone(feed));
    for (path, kind, text) in FILES {
        page = page.route(path, get(move || async move { file(kind, text) }));
    }
    service
        .layer(from_fn_with_state(Arc::clone(feed), watch::watch))
        .merge(page.layer(map_response(secured)))
        .layer(map_response(last_on_its_connection))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text).into_response()
}

/// Sends the server's steps as they happen, as server-sent events.
async fn events(State(feed): State<Arc<Feed>>) -> Response {
    match feed.subscribe() {
        Some(lines) => {
            let head =
                [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
            (head, lines).into_response()
        }
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many pages are open, or the service is stopping\n",
        )
            .into_response(),
    }
}

async fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.extend(SECURITY.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

/// Closes the connection after each answer. If a browser loses an answer on a reused connection, it
/// silently sends the request again, even a POST, and the page would show one press too many. On a
/// new connection, the browser does not do so.
async fn last_on_its_connection(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
