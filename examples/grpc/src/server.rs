// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server: guards the service, and shuts the guard down after the service.

use std::future::Future;
use std::time::Duration;

use retryproof::IdempotencyEngine;
use retryproof::http::{IdempotencyFilter, Policy};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::LayerExt as _;
use tonic::transport::Server;

use crate::BoxError;
use crate::proto::{HISTORY, Payments, PaymentsServer};

const DAY: Duration = Duration::from_secs(86_400);

/// The policy names no scope, so each method has its own scope.
const POLICY: Policy = Policy::unnamed().with_ttl(DAY).with_wait_timeout(Duration::from_secs(5));

/// Serves until `stop` resolves, then waits for running calls. This includes calls whose clients
/// have disconnected, for which the server itself does not wait.
///
/// # Errors
/// If the filter cannot be built, or if the server fails.
pub async fn serve<P: Payments>(
    listener: TcpListener,
    engine: IdempotencyEngine,
    payments: P,
    stop: impl Future<Output = ()>,
) -> Result<(), BoxError> {
    // All clients count as one caller. If there are tenants, use `.caller(|request:
    // &http::request::Parts| …)` to read the tenant that an outer interceptor has added to the
    // request.
    let filter = IdempotencyFilter::builder(engine).callers_share_keys().build()?;
    let guard = filter.grpc(POLICY).streaming(HISTORY);
    Server::builder()
        .add_service(guard.named_layer(PaymentsServer::new(payments)))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop)
        .await?;
    let left = filter.shutdown(Duration::from_secs(30)).await;
    if left > 0 {
        eprintln!("{left} calls were still running; their leases will expire");
    }
    Ok(())
}
