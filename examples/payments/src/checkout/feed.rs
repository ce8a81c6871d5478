// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends each step of the server to every open page as it happens.
//!
//! The engine's observer gets keys, but not requests. The engine calls it in the task of the
//! request, so the middleware stores the request's [`Visit`] in that task.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use retryproof::Identity;
use retryproof::observe::{LeaseEvent, Observer};
use serde::Serialize;
use tokio::sync::mpsc;

/// How many pages can listen at the same time.
const PAGES: usize = 64;
/// How many events a page can be behind. The feed disconnects a page that is further behind, and
/// the page then reconnects.
const BEHIND: usize = 1024;

tokio::task_local! {
    /// The request that this task answers.
    pub(super) static VISIT: Arc<Visit>;
}

/// The open pages.
#[derive(Debug)]
pub(crate) struct Feed {
    /// `None` once the service is stopping.
    pages: Mutex<Option<Vec<mpsc::Sender<Bytes>>>>,
    requests: AtomicU64,
}

/// One request, from its arrival on.
#[derive(Debug)]
pub(super) struct Visit {
    feed: Arc<Feed>,
    number: u64,
    attempt: Option<String>,
    /// Whether the handler ran for this request.
    pub(super) ran: AtomicBool,
}

/// A step of a request. It contains no part of the key or the body.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(super) enum State {
    Arrived,
    Running,
    Waiting,
    Answered {
        /// `executed`, `replayed`, `in flight`, `refused` or `failed`.
        did: &'static str,
        status: u16,
        /// The headers that the page shows, in the page's order.
        headers: Vec<(&'static str, String)>,
        ms: u64,
        cut: bool,
    },
    /// The client disconnected before the answer. The running work continues.
    Left,
}

#[derive(Serialize)]
struct Event<'a> {
    request: u64,
    attempt: Option<&'a str>,
    #[serde(flatten)]
    state: State,
}

impl Feed {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { pages: Mutex::new(Some(Vec::new())), requests: AtomicU64::new(0) })
    }

    /// Adds a page. Returns `None` if too many pages listen, or if the feed has ended.
    pub(super) fn subscribe(&self) -> Option<Lines> {
        let (page, lines) = mpsc::channel(BEHIND);
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = pages.as_mut()?;
        pages.retain(|page| !page.is_closed());
        if pages.len() >= PAGES {
            return None;
        }
        // Send this event immediately, so that the page can show that it is connected.
        let _ = page.try_send(Bytes::from_static(b"retry: 1000\nevent: hello\ndata:\n\n"));
        pages.push(page);
        Some(Lines(lines))
    }

    /// Ends every stream. Otherwise a server that waits for its connections would wait forever.
    pub(crate) fn close(&self) {
        *self.pages.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn arrived(self: &Arc<Self>, attempt: Option<String>) -> Arc<Visit> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let visit = Visit { feed: Arc::clone(self), number, attempt, ran: AtomicBool::new(false) };
        visit.tell(State::Arrived);
        Arc::new(visit)
    }
}

impl Visit {
    pub(super) fn tell(&self, state: State) {
        let event = Event { request: self.number, attempt: self.attempt.as_deref(), state };
        let Ok(json) = serde_json::to_string(&event) else { return };
        let line = Bytes::from(format!("data: {json}\n\n"));
        if let Some(pages) = &mut *self.feed.pages.lock().unwrap_or_else(PoisonError::into_inner) {
            pages.retain(|page| page.try_send(line.clone()).is_ok());
        }
    }
}

impl Observer for Feed {
    fn acquired(&self, _: LeaseEvent<'_>) {
        let _ = VISIT.try_with(|visit| {
            visit.ran.store(true, Ordering::Relaxed);
            visit.tell(State::Running);
        });
    }

    fn waiting(&self, _: &Identity) {
        let _ = VISIT.try_with(|visit| visit.tell(State::Waiting));
    }
}

/// The body of one page's stream.
pub(super) struct Lines(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

impl IntoResponse for Lines {
    fn into_response(self) -> Response {
        Response::new(Body::new(self))
    }
}
