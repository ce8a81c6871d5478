// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod find;
mod html;
mod page;
mod survey;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Form, OriginalUri, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use retryproof_core::{ErrorKind, IdempotencyEngine};

use find::Wanted;
use page::AdminView;
use survey::Surveys;

const STYLE: &str = include_str!("style.css");

/// The largest form that is read, in bytes. It leaves room for a scope, a key and a caller with
/// every byte escaped.
const MAX_FORM_BYTES: usize = 8 * 1_024;

const POLICY: &str = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";

/// The header fields of every response, refusals included.
const HEADERS: [(HeaderName, &str); 7] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// What the sender of a request may do on the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Allows everything that the page offers. This version only reads, so `All` shows the same as
    /// [`ReadOnly`](Self::ReadOnly). A later version may allow changes with `All`.
    All,
    /// Allows everything on the page that only reads.
    ReadOnly,
    /// Allows nothing: the request gets 403.
    Denied,
}

#[derive(Clone)]
struct AdminState {
    engine: IdempotencyEngine,
    surveys: Arc<Surveys>,
}

/// Creates the page of an engine and its store (OPS-9). Before anything else happens, `access` gets
/// the head of the request and returns what its sender may do. There is no default. `access` must
/// not trust a header that clients can set themselves.
///
/// The router has the paths `/records`, `/live`, `/style.css`, and `/`, which redirects to
/// `/records`.
///
/// # Panics
/// If `access` panics, the request gets no answer.
///
/// # Cancel safety
/// If a client disconnects, a scan that its request has started continues to the end. The next
/// request shows the result.
#[must_use = "nest the router in the router of your service, or serve it"]
pub fn router<A>(engine: &IdempotencyEngine, access: A) -> Router
where
    A: Fn(&Parts) -> Access + Send + Sync + 'static,
{
    let access = Arc::new(access);
    let page = AdminState { engine: engine.clone(), surveys: Arc::new(Surveys::new(engine)) };
    Router::new()
        .route("/", get(to_records))
        .route("/records", get(records).post(find_record))
        .route("/live", get(live))
        .route("/style.css", get(style))
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(from_fn(move |request: Request, next: Next| {
            checked(Arc::clone(&access), request, next)
        }))
        .with_state(page)
}

/// Calls `access` before anything else, and adds [`HEADERS`] to each response.
async fn checked<A>(access: Arc<A>, request: Request, next: Next) -> Response
where
    A: Fn(&Parts) -> Access + Send + Sync,
{
    let (parts, body) = request.into_parts();
    let mut response = match access(&parts) {
        Access::All | Access::ReadOnly => next.run(Request::from_parts(parts, body)).await,
        Access::Denied => (StatusCode::FORBIDDEN, "access denied\n").into_response(),
    };
    let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}

/// Redirects to the page's own path. At `/admin` without a trailing slash, the page's relative
/// links would not work.
async fn to_records(OriginalUri(uri): OriginalUri) -> Response {
    let location = match uri.path().rsplit('/').next() {
        None | Some("") => "./records".to_owned(),
        Some(last) => format!("./{last}/records"),
    };
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)]).into_response()
}

async fn style() -> Response {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], STYLE).into_response()
}

async fn records(State(page): State<AdminState>) -> Response {
    let survey = page.surveys.current().await;
    let status =
        if survey.error.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    shown(status, &AdminView { survey: Some(&survey), ..AdminView::of(&page.engine) })
}

async fn live(State(page): State<AdminState>) -> Response {
    let survey = page.surveys.current().await;
    shown(
        StatusCode::OK,
        &AdminView { survey: Some(&survey), is_live: true, ..AdminView::of(&page.engine) },
    )
}

async fn find_record(
    State(page): State<AdminState>,
    Form(fields): Form<Vec<(String, String)>>,
) -> Response {
    let wanted = Wanted::from_fields(fields);
    let found = find::find(&page.engine, &wanted).await;
    let status = match &found {
        Ok(_) => StatusCode::OK,
        Err(error) if error.kind() == ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    shown(status, &AdminView { found: Some((&wanted, &found)), ..AdminView::of(&page.engine) })
}

fn shown(status: StatusCode, view: &AdminView<'_>) -> Response {
    (status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], view.html()).into_response()
}
