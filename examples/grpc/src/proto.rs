// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pay.v1`: the messages, and the service that routes each call to its method.
//!
//! ```proto
//! package pay.v1;
//! service Payments {
//!   rpc Charge (ChargeRequest) returns (Receipt);
//!   rpc History (HistoryRequest) returns (stream Receipt);
//! }
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, StdError, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// A payment to make.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ChargeRequest {
    /// The account that pays.
    #[prost(string, tag = "1")]
    pub account: String,
    /// The amount in cents.
    #[prost(uint64, tag = "2")]
    pub cents: u64,
}

/// A payment that was made.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Receipt {
    /// The payment's number in the ledger.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// The account that paid.
    #[prost(string, tag = "2")]
    pub account: String,
    /// The amount in cents.
    #[prost(uint64, tag = "3")]
    pub cents: u64,
}

/// Asks for the payments of one account.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HistoryRequest {
    /// The account that paid.
    #[prost(string, tag = "1")]
    pub account: String,
}

/// The path of `Charge`.
pub const CHARGE: &str = "/pay.v1.Payments/Charge";
/// The path of `History`.
pub const HISTORY: &str = "/pay.v1.Payments/History";

type Answer<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// The stream of receipts that `History` returns.
pub type Receipts = Pin<Box<dyn Stream<Item = Result<Receipt, Status>> + Send>>;

/// The methods of the service.
pub trait Payments: Send + Sync + 'static {
    /// Makes a payment.
    fn charge(
        &self,
        request: Request<ChargeRequest>,
    ) -> impl Future<Output = Result<Response<Receipt>, Status>> + Send;

    /// Returns all payments of an account.
    fn history(
        &self,
        request: Request<HistoryRequest>,
    ) -> impl Future<Output = Result<Response<Receipts>, Status>> + Send;
}

/// A tower service that routes calls to the methods.
#[derive(Debug)]
pub struct PaymentsServer<T>(Arc<T>);

impl<T: Payments> PaymentsServer<T> {
    /// Wraps an implementation.
    pub fn new(payments: T) -> Self {
        Self(Arc::new(payments))
    }
}

impl<T> Clone for PaymentsServer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> NamedService for PaymentsServer<T> {
    const NAME: &'static str = "pay.v1.Payments";
}

impl<T, B> tonic::codegen::Service<http::Request<B>> for PaymentsServer<T>
where
    T: Payments,
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let payments = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(match request.uri().path() {
                CHARGE => Grpc::new(ProstCodec::default()).unary(Charge(payments), request).await,
                HISTORY => {
                    Grpc::new(ProstCodec::default())
                        .server_streaming(History(payments), request)
                        .await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

struct Charge<T>(Arc<T>);

impl<T: Payments> UnaryService<ChargeRequest> for Charge<T> {
    type Response = Receipt;
    type Future = Answer<Receipt>;

    fn call(&mut self, request: Request<ChargeRequest>) -> Self::Future {
        let payments = Arc::clone(&self.0);
        Box::pin(async move { payments.charge(request).await })
    }
}

struct History<T>(Arc<T>);

impl<T: Payments> ServerStreamingService<HistoryRequest> for History<T> {
    type Response = Receipt;
    type ResponseStream = Receipts;
    type Future = Answer<Receipts>;

    fn call(&mut self, request: Request<HistoryRequest>) -> Self::Future {
        let payments = Arc::clone(&self.0);
        Box::pin(async move { payments.history(request).await })
    }
}
