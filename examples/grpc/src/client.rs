// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client side. Every retry of a payment uses the payment's key, and waits as long as the
//! server requests.

use std::time::Duration;

use tonic::client::Grpc;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::BoxError;
use crate::proto::{CHARGE, ChargeRequest, HISTORY, HistoryRequest, Receipt};

/// A connection to the server.
#[derive(Debug, Clone)]
pub struct Client(Grpc<Channel>);

impl Client {
    /// Connects to `http://HOST:PORT`.
    ///
    /// # Errors
    /// If no server listens there.
    pub async fn connect(url: String) -> Result<Self, BoxError> {
        Ok(Self(Grpc::new(Endpoint::from_shared(url)?.connect().await?)))
    }

    /// Sends a payment once.
    ///
    /// # Errors
    /// The server's status.
    pub async fn charge(
        &mut self,
        key: &str,
        charge: &ChargeRequest,
    ) -> Result<Response<Receipt>, Status> {
        let request = keyed(key, charge.clone())?;
        self.ready().await?;
        self.0.unary(request, CHARGE.parse().map_err(internal)?, ProstCodec::default()).await
    }

    /// Sends a payment until the server answers it, at most nine times. The server makes one
    /// payment per key, however often the client sends it.
    ///
    /// # Errors
    /// A status that a retry would not change, or the status of the last attempt.
    pub async fn charge_surely(
        &mut self,
        key: &str,
        charge: &ChargeRequest,
    ) -> Result<Response<Receipt>, Status> {
        let mut pause = Duration::from_millis(100);
        for _ in 0..8 {
            match self.charge(key, charge).await {
                // Retry: the key is in flight, the store or the server is unavailable, or the
                // answer was lost. For a connection that breaks off, tonic says `Unknown`.
                Err(status)
                    if matches!(
                        status.code(),
                        Code::Aborted
                            | Code::Unavailable
                            | Code::Cancelled
                            | Code::DeadlineExceeded
                            | Code::Unknown
                    ) =>
                {
                    tokio::time::sleep(asked_for(status.metadata()).unwrap_or(pause)).await;
                    pause *= 2;
                }
                answer => return answer,
            }
        }
        self.charge(key, charge).await
    }

    /// Requests all payments of an account. The method is guarded too, but its answer is a stream
    /// and is not replayed, so each call needs a new key.
    ///
    /// # Errors
    /// The server's status.
    pub async fn history(
        &mut self,
        key: &str,
        account: &str,
    ) -> Result<Response<Streaming<Receipt>>, Status> {
        let request = keyed(key, HistoryRequest { account: account.to_owned() })?;
        self.ready().await?;
        self.0
            .server_streaming(request, HISTORY.parse().map_err(internal)?, ProstCodec::default())
            .await
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.0.ready().await.map_err(|error| Status::unavailable(error.to_string()))
    }
}

fn keyed<T>(key: &str, message: T) -> Result<Request<T>, Status> {
    let mut request = Request::new(message);
    let key = AsciiMetadataValue::try_from(key)
        .map_err(|_| Status::invalid_argument("a key must be ASCII"))?;
    request.metadata_mut().insert("idempotency-key", key);
    Ok(request)
}

/// Returns the pause that the server requests.
fn asked_for(metadata: &MetadataMap) -> Option<Duration> {
    let millis = metadata.get("grpc-retry-pushback-ms")?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(millis))
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

/// Returns whether an answer is a replay of an earlier answer.
#[must_use]
pub fn is_replay<T>(response: &Response<T>) -> bool {
    response.metadata().contains_key("idempotent-replayed")
}
