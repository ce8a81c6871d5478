// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--operate ADDR`: serves operators on a separate port, which customers must not be able to
//! reach.
//!
//! - `/metrics`: the engine's instruments, for Prometheus.
//! - `/spans`: the last spans of calls, one JSON value per line, the newest last. A real service
//!   sends them to a collector instead.
//! - `/admin/records`: the page for operators, with a password that the program generates when it
//!   starts.
//!
//! Metrics and spans contain no key, so they need no password here.

mod spans;

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use prometheus::{Registry, TextEncoder};
use retryproof::{EngineBuilder, IdempotencyConfig, IdempotencyEngine, OwnerId};
use retryproof_admin::Access;
use tokio::net::TcpListener;

use crate::BoxError;
use spans::Spans;

/// The service's name in metrics and spans.
const SERVICE: &str = "payments";
const USER: &str = "operator";

/// The measurements and spans of this process.
#[derive(Debug, Clone)]
pub(crate) struct Telemetry {
    registry: Registry,
    meters: SdkMeterProvider,
    tracers: SdkTracerProvider,
    spans: Spans,
}

impl Telemetry {
    pub(crate) fn new() -> Result<Self, BoxError> {
        let (registry, spans) = (Registry::new(), Spans::default());
        let exporter =
            opentelemetry_prometheus::exporter().with_registry(registry.clone()).build()?;
        Ok(Self {
            registry,
            meters: SdkMeterProvider::builder().with_reader(exporter).build(),
            tracers: SdkTracerProvider::builder().with_span_processor(spans.clone()).build(),
            spans,
        })
    }

    pub(crate) fn tracer(&self) -> SdkTracer {
        self.tracers.tracer(SERVICE)
    }

    /// Adds instruments to the engine, and links from each replay to the trace in which the work
    /// ran.
    pub(crate) fn observe(
        &self,
        engine: EngineBuilder,
        config: &IdempotencyConfig,
    ) -> EngineBuilder {
        let meter = self.meters.meter(SERVICE);
        engine
            .observer(retryproof_otel::observer_with(&meter, config))
            .current_trace(retryproof_otel::current_trace)
    }

    /// Starts a server for metrics, spans and the page, which runs until the program ends.
    pub(crate) async fn serve(
        self,
        listen: SocketAddr,
        engine: &IdempotencyEngine,
    ) -> Result<(), BoxError> {
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|error| format!("cannot listen on {listen}: {error}"))?;
        let address = listener.local_addr()?;
        let password = random();
        println!("operators: http://{USER}:{password}@{address}/admin/records");
        println!("metrics at http://{address}/metrics, spans at http://{address}/spans");
        let expected = basic(USER, &password);
        let access = move |request: &Parts| {
            let login = request.headers.get(header::AUTHORIZATION);
            if login.is_some_and(|login| login == expected.as_str()) {
                Access::ReadOnly
            } else {
                Access::Denied
            }
        };
        let page = retryproof_admin::router(engine, access).layer(map_response(ask_for_login));
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/spans", get(last_spans))
            .with_state(self)
            .nest("/admin", page);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(())
    }
}

async fn metrics(State(telemetry): State<Telemetry>) -> Response {
    match TextEncoder::new().encode_to_string(&telemetry.registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn last_spans(State(telemetry): State<Telemetry>) -> String {
    telemetry.spans.lines()
}

/// Replaces the page's 403 with a 401, so that a browser asks for the password.
async fn ask_for_login(mut response: Response) -> Response {
    if response.status() == StatusCode::FORBIDDEN {
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        let basic = HeaderValue::from_static("Basic realm=\"payments\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, basic);
    }
    response
}

/// Returns 128 random bits from the operating system, as 32 hex digits.
fn random() -> String {
    OwnerId::new().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the header that a browser sends for this login (RFC 7617).
fn basic(user: &str, password: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let login = format!("{user}:{password}");
    let mut header = "Basic ".to_owned();
    for three in login.as_bytes().chunks(3) {
        let bits = three.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
        let bits = bits << (8 * (3 - three.len()));
        for at in 0..4 {
            header.push(match at <= three.len() {
                true => char::from(ALPHABET[bits >> (18 - 6 * at) & 63]),
                false => '=',
            });
        }
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_encoded_as_browsers_do() {
        assert_eq!(basic("Aladdin", "open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(basic("a", "b"), "Basic YTpi");
        assert_eq!(basic("ab", "cd"), "Basic YWI6Y2Q=");
    }
}
