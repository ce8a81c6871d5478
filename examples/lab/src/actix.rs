// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab on actix-web, with the same routes, guards and scripts as on axum. One suite therefore
//! tests both frameworks (HTTP-17).

use std::error::Error as StdError;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{Payload, Server, Service as _};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::web::{self, Bytes, PayloadConfig};
use actix_web::{App, FromRequest, HttpRequest, HttpResponse, HttpServer, error};
use axum::body::Body;
use axum::http;
use http_body::Body as _;
use retryproof::actix::{Idempotency, WithFate as _, idempotent};
use retryproof::http::{AnswerFate, IdempotencyFilter, Methods, Policy};
use retryproof::{Error, IdempotencyEngine, WebConfig};

use crate::runs;
use crate::script::Script;

/// The body limit of `/open/echo`, which is the same as on axum. A guarded endpoint has the limit
/// of its filter.
const OPEN_LIMIT: usize = 2 << 20;

/// The first argument of every guarded endpoint. It requires the header `x-user` if the script says
/// `auth` (ANN-6).
struct User;

impl FromRequest for User {
    type Error = actix_web::Error;
    type Future = std::future::Ready<Result<Self, Self::Error>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        // A malformed script is refused later, by the handler.
        let wanted = Script::of(&fields(request)).is_ok_and(|script| script.auth);
        std::future::ready(match wanted && !request.headers().contains_key("x-user") {
            true => Err(error::ErrorUnauthorized("the header x-user is missing\n")),
            false => Ok(Self),
        })
    }
}

/// Returns the header with the script, in the type that `Script::of` reads.
fn fields(request: &HttpRequest) -> http::HeaderMap {
    let script =
        request.headers().get("x-lab").map(|value| http::HeaderValue::from_bytes(value.as_bytes()));
    script
        .and_then(Result::ok)
        .map(|value| (http::HeaderName::from_static("x-lab"), value))
        .into_iter()
        .collect()
}

/// Follows the script in the header `x-lab`, with the same code as for axum.
async fn run(request: HttpRequest, body: Bytes) -> HttpResponse {
    let fields = fields(&request);
    // Drop the request before the script sleeps, so that the request is not kept for that time.
    drop(request);
    let (parts, body) = crate::run::run(&fields, &body).await.into_parts();
    let status =
        StatusCode::from_u16(parts.status.as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::with_body(status, BoxBody::new(Streamed(body)));
    append(&parts.headers, response.headers_mut());
    match parts.extensions.get::<AnswerFate>() {
        Some(fate) => response.with_fate(*fate),
        None => response,
    }
}

fn append(from: &http::HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_ref()), HeaderValue::from_bytes(value.as_bytes()))
        {
            to.append(name, value);
        }
    }
}

/// A scripted body, without its trailers, which actix-web does not support.
struct Streamed(Body);

impl MessageBody for Streamed {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        self.0.size_hint().exact().map_or(BodySize::Stream, BodySize::Sized)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        loop {
            match std::task::ready!(Pin::new(&mut self.0).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
    }
}

#[idempotent(http, scope = "lab.std", ttl = "PT1H", lease = "PT5S", wait_timeout = "PT2S")]
async fn standard(_user: User, request: HttpRequest, body: Bytes) -> HttpResponse {
    run(request, body).await
}

#[idempotent(http, scope = "lab.now", ttl = "PT1H", lease = "PT5S", wait_timeout = "PT0S")]
async fn now(_user: User, request: HttpRequest, body: Bytes) -> HttpResponse {
    run(request, body).await
}

#[idempotent(http, scope = "lab.patient", ttl = "PT1H", lease = "PT2S", wait_timeout = "PT10S")]
async fn patient(_user: User, request: HttpRequest, body: Bytes) -> HttpResponse {
    run(request, body).await
}

#[idempotent(http, scope = "lab.short", ttl = "PT2S", lease = "PT1S", wait_timeout = "PT3S")]
async fn short(_user: User, request: HttpRequest, body: Bytes) -> HttpResponse {
    run(request, body).await
}

/// An endpoint with the default scope: method and route.
#[idempotent(http, ttl = "PT1H", lease = "PT5S", wait_timeout = "PT2S")]
async fn orders(_user: User, request: HttpRequest, body: Bytes) -> HttpResponse {
    run(request, body).await
}

#[idempotent(http, scope = "lab.tenant", ttl = "PT1H", lease = "PT5S", wait_timeout = "PT2S")]
async fn tenant(_user: User, request: HttpRequest, body: Bytes) -> HttpResponse {
    run(request, body).await
}

/// A handler without an annotation. The middleware guards it on `/lab/layered`; nothing guards it
/// on `/open/echo`.
async fn plain(_user: User, request: HttpRequest, body: Bytes) -> HttpResponse {
    run(request, body).await
}

async fn read_runs(tag: web::Path<String>) -> web::Json<runs::Counts> {
    web::Json(runs::read(&tag))
}

async fn health(engine: web::Data<IdempotencyEngine>) -> HttpResponse {
    let name = retryproof::IdempotencyStore::profile(engine.store()).name;
    match engine.health().await {
        Ok(()) => HttpResponse::Ok().json(serde_json::json!({ "store": name, "answers": true })),
        Err(error) => {
            tracing::warn!(%error, "the store does not answer");
            let told = serde_json::json!({ "store": name, "answers": false });
            HttpResponse::ServiceUnavailable().json(told)
        }
    }
}

/// Starts the server. Also returns a filter for the shutdown; both filters share one engine.
pub(crate) fn server(
    engine: &IdempotencyEngine,
    web: &WebConfig,
    listener: std::net::TcpListener,
) -> Result<(Server, IdempotencyFilter), Error> {
    let shared = IdempotencyFilter::builder(engine.clone())
        .config(web.clone())
        .callers_share_keys()
        .build()?;
    let by_tenant = IdempotencyFilter::builder(engine.clone())
        .config(web.clone())
        .caller(|request: &http::request::Parts| {
            request.headers.get("x-tenant").map(crate::endpoints::named)
        })
        .absent_callers_share()
        .build()?;
    let layered = Policy::new("lab.layered")
        .with_ttl(Duration::from_secs(3600))
        .with_lease(Duration::from_secs(5))
        .with_wait_timeout(Duration::from_secs(2))
        .methods(Methods::All);

    let limit = OPEN_LIMIT.max(web.max_body_bytes);
    let engine = web::Data::new(engine.clone());
    let filter = shared.clone();
    let app = move || {
        let any = web::route;
        App::new()
            .app_data(engine.clone())
            .app_data(PayloadConfig::new(limit))
            .route("/lab/std", any().to(standard(shared.clone())))
            .route("/lab/now", any().to(now(shared.clone())))
            .route("/lab/patient", any().to(patient(shared.clone())))
            .route("/lab/short", any().to(short(shared.clone())))
            .route("/lab/orders/{id}", any().to(orders(shared.clone())))
            .route("/lab/tenant", any().to(tenant(by_tenant.clone())))
            .service(
                web::resource("/lab/layered").wrap(Idempotency::new(&shared, layered)).to(plain),
            )
            .route("/open/echo", any().to(plain))
            .route("/open/runs/{tag}", web::get().to(read_runs))
            .route("/open/health", web::get().to(health))
            .wrap_fn(|request, service| caught(service.call(request)))
    };
    let server = HttpServer::new(app).disable_signals().listen_auto_h2c(listener);
    let server = server.map_err(|error| {
        Error::new(retryproof::ErrorKind::Unexpected, "the server cannot be started").because(error)
    })?;
    Ok((server.run(), filter))
}

/// Turns a handler's panic into a 500. This is the outermost layer.
async fn caught<T>(answering: impl Future<Output = actix_web::Result<T>>) -> actix_web::Result<T> {
    let mut answering = pin!(answering);
    let answered = std::future::poll_fn(|cx| {
        match catch_unwind(AssertUnwindSafe(|| answering.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    });
    answered.await.unwrap_or_else(|_| Err(error::ErrorInternalServerError("the handler panicked")))
}
