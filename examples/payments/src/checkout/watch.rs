// SPDX-License-Identifier: MIT OR Apache-2.0
//! The middleware around the guarded route. It sees the same answers as a client, reports them to
//! the feed, and cuts connections on request.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::feed::{self, Feed, VISIT, Visit};
use super::wire::Wire;

/// The longest delay of the provider that a request can set. It is longer than a retry waits (10
/// s), so that the page can show a retry that is refused.
const SLOWEST: Duration = Duration::from_secs(15);

/// The headers of an answer that the page shows.
const SHOWN: [&str; 3] = ["Idempotent-Replayed", "Retry-After", "Cache-Control"];

/// The provider's delay, if the request sets one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delay(pub(crate) Option<Duration>);

/// Reads the delay that the middleware has set. Without the middleware, the header has no effect.
impl<S: Sync> FromRequestParts<S> for Delay {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

/// The settings in the demonstration's headers.
#[derive(Debug, PartialEq, Eq)]
struct Wishes {
    cut: bool,
    delay: Option<Duration>,
    attempt: Option<String>,
}

impl Wishes {
    fn of(headers: &HeaderMap) -> Result<Self, &'static str> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("\0"));
        let cut = match text("x-demo-cut") {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err("X-Demo-Cut must be true or false\n"),
        };
        let delay =
            text("x-demo-delay").map(|value| value.parse().map(Duration::from_millis)).transpose();
        let delay = delay.ok().filter(|delay| delay.is_none_or(|delay| delay <= SLOWEST));
        let delay =
            delay.ok_or("X-Demo-Delay must be a number of milliseconds, at most 15000\n")?;
        let attempt = text("x-demo-attempt").map(str::to_owned);
        let plain = |text: &String| {
            (1..=64).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if attempt.as_ref().is_some_and(|attempt| !plain(attempt)) {
            return Err("X-Demo-Attempt must consist of 1 to 64 letters, digits and hyphens\n");
        }
        Ok(Self { cut, delay, attempt })
    }
}

/// Reports `left` if it is dropped without an answer. This happens when the client disconnects,
/// because hyper then drops the request's future.
struct Open {
    visit: Arc<Visit>,
    answered: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.answered {
            self.visit.tell(feed::State::Left);
        }
    }
}

pub(super) async fn watch(
    State(feed): State<Arc<Feed>>,
    ConnectInfo(wire): ConnectInfo<Wire>,
    mut request: Request,
    next: Next,
) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    let wishes = match Wishes::of(request.headers()) {
        Ok(wishes) => wishes,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    request.extensions_mut().insert(Delay(wishes.delay));
    let began = Instant::now();
    let mut open = Open { visit: feed.arrived(wishes.attempt), answered: false };
    let response = VISIT.scope(Arc::clone(&open.visit), next.run(request)).await;
    // The guard answers only after it has committed the record, so from here on only the answer can
    // be lost.
    if wishes.cut {
        wire.cut();
    }
    open.answered = true;
    open.visit.tell(feed::State::Answered {
        did: judge(&response, open.visit.ran.load(Ordering::Relaxed)),
        status: response.status().as_u16(),
        headers: shown(response.headers()),
        ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        cut: wishes.cut,
    });
    response
}

fn judge(response: &Response, ran: bool) -> &'static str {
    let has = |name: &str| response.headers().contains_key(name);
    match response.status() {
        status if status.is_server_error() => "failed",
        _ if ran => "executed",
        _ if has("idempotent-replayed") => "replayed",
        StatusCode::CONFLICT if has(header::RETRY_AFTER.as_str()) => "in flight",
        _ => "refused",
    }
}

fn shown(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    let line = |name: &'static str| Some((name, headers.get(name)?.to_str().ok()?.to_owned()));
    SHOWN.into_iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(name: &'static str, value: &str) -> Result<Wishes, &'static str> {
        let value = value.parse().expect("a header's value");
        Wishes::of(&[(name.parse().expect("its name"), value)].into_iter().collect())
    }

    #[test]
    fn wishes_are_read_strictly_and_none_is_no_wish() {
        let none = Wishes { cut: false, delay: None, attempt: None };
        assert_eq!(Wishes::of(&HeaderMap::new()), Ok(none));
        assert!(wishes("x-demo-cut", "true").is_ok_and(|wishes| wishes.cut));
        let delay = wishes("x-demo-delay", "2000").expect("a delay").delay;
        assert_eq!(delay, Some(Duration::from_secs(2)));
        assert_eq!(
            wishes("x-demo-attempt", "a1-3").expect("an attempt").attempt.as_deref(),
            Some("a1-3")
        );
        for (name, value) in [
            ("x-demo-cut", "yes"),
            ("x-demo-delay", "-1"),
            ("x-demo-delay", "2 s"),
            ("x-demo-delay", "15001"),
            ("x-demo-attempt", ""),
            ("x-demo-attempt", "<b>"),
        ] {
            let why = wishes(name, value).expect_err(value);
            assert!(why.to_lowercase().starts_with(name), "{why}");
        }
    }
}
