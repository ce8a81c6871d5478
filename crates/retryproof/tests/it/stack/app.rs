// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guide's full stack, word for word.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::post};
use retryproof::IdempotencyEngine;
use retryproof::http::{IdempotencyFilter, Policy};
use tower_http::{
    catch_panic::CatchPanicLayer, compression::CompressionLayer, cors::CorsLayer,
    decompression::RequestDecompressionLayer, timeout::TimeoutLayer, trace::TraceLayer,
};

#[derive(Clone)]
struct Tenant(String);

async fn authenticated(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(header::AUTHORIZATION).and_then(|token| token.to_str().ok());
    match token.and_then(|token| token.strip_prefix("Bearer ")) {
        Some(tenant) => {
            let tenant = Tenant(tenant.to_owned()); // look up the tenant of the token here
            request.extensions_mut().insert(tenant);
            next.run(request).await
        }
        None => (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")]).into_response(),
    }
}

async fn pay(order: Bytes) -> (StatusCode, String) {
    assert!(order != "panic", "the handler panics");
    (StatusCode::CREATED, format!("paid {}", String::from_utf8_lossy(&order)))
}

pub(crate) fn app(engine: IdempotencyEngine) -> retryproof::Result<Router> {
    let key = HeaderName::from_static("idempotency-key");
    let replayed = HeaderName::from_static("idempotent-replayed");
    let filter = IdempotencyFilter::builder(engine)
        .caller(|head: &Parts| head.extensions.get::<Tenant>().map(|tenant| tenant.0.clone()))
        .challenge("Bearer")
        .build()?;
    let cors = CorsLayer::new()
        .allow_origin(HeaderValue::from_static("https://shop.example"))
        .allow_methods([Method::POST])
        .allow_headers([key, header::AUTHORIZATION, header::CONTENT_TYPE, header::CONTENT_ENCODING])
        .expose_headers([replayed, header::RETRY_AFTER]);
    // Each `layer` wraps the layers above it, so the last line is the outermost layer.
    Ok(Router::new()
        .route("/payments", post(pay))
        .route_layer(filter.guard(Policy::new("payments")))
        .layer(from_fn(authenticated))
        .layer(RequestDecompressionLayer::new()) // the guard gets decompressed bytes
        .layer(CompressionLayer::new())
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(30)))
        .layer(CatchPanicLayer::new())
        .layer(cors) // outside the panic catcher, so that a page can read its 500
        .layer(TraceLayer::new_for_http()))
}
