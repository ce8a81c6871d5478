// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server: the guard around the service, and the end of both.

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

/// Without a scope: each method has its own.
const POLICY: Policy = Policy::unnamed().with_ttl(DAY).with_wait_timeout(Duration::from_secs(5));

/// Serves until `stop`, then lets running calls end: also those whose clients went away, which the
/// server itself does not wait for.
///
/// # Errors
/// The server's own.
pub async fn serve<P: Payments>(
    listener: TcpListener,
    engine: IdempotencyEngine,
    payments: P,
    stop: impl Future<Output = ()>,
) -> Result<(), BoxError> {
    // One caller. Where there are tenants: `.caller(|request: &http::request::Parts| …)`, from what
    // an interceptor outside put there.
    let filter = IdempotencyFilter::builder(engine).callers_share_keys().build()?;
    let guard = filter.grpc(POLICY).streaming(HISTORY);
    Server::builder()
        .add_service(guard.named_layer(PaymentsServer::new(payments)))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop)
        .await?;
    let left = filter.shutdown(Duration::from_secs(30)).await;
    if left > 0 {
        eprintln!("{left} calls were still running; their leases run out");
    }
    Ok(())
}
