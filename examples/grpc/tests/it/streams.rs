// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: the client gets the whole stream, the call runs once, and its answer cannot be replayed
//! (HTTP-13).

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use grpc_payments::proto::{HISTORY, PaymentsServer, Receipt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::client::Grpc as Caller;
use tonic::codegen::{Body as HttpBody, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::service::LayerExt as _;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::world::{
    NO_WAIT, POLICY, Refusal, Scripted, charge, client, filter, filter_over, in_time, refusal,
    serve,
};

#[tokio::test]
async fn http_13_a_stream_arrives_whole_and_its_retry_already_exists() {
    let service = Scripted::new();
    let mut client = client(serve(&filter(), POLICY, &service).await).await;
    let mut stream = in_time(client.history("k", "three")).await.expect("OK").into_inner();
    let mut cents = Vec::new();
    while let Some(receipt) = in_time(stream.message()).await.expect("OK") {
        cents.push(receipt.cents);
    }
    assert_eq!(cents, [0, 1, 2, 3, 4]);
    let status = in_time(client.history("k", "three")).await.expect_err("it was not kept");
    assert_eq!(status.code(), Code::AlreadyExists);
    let expected =
        Refusal { reason: "RESULT_NOT_REPLAYABLE".into(), retryable: false, seconds: None };
    assert_eq!(refusal(&status), expected);
    assert_eq!(service.runs(), 1);
}

#[tokio::test]
async fn http_13_a_stream_of_one_message_or_none_is_an_answer_like_any_other() {
    let service = Scripted::new();
    let mut client = client(serve(&filter(), POLICY, &service).await).await;
    for account in ["", "x"] {
        for _ in 0..2 {
            let stream = in_time(client.history(&format!("k{account}"), account))
                .await
                .expect("OK")
                .into_inner();
            let receipts: Vec<_> = in_time(stream.collect()).await;
            assert_eq!(receipts.len(), account.len());
        }
    }
    assert_eq!(service.runs(), 2);
}

/// Answers each request, as it arrives, with a receipt of twice the cents.
#[derive(Clone)]
struct Doubling;

impl NamedService for Doubling {
    const NAME: &'static str = "pay.v1.Payments";
}

type Doubled = Pin<Box<dyn Stream<Item = Result<Receipt, Status>> + Send>>;

impl StreamingService<Receipt> for Doubling {
    type Response = Receipt;
    type ResponseStream = Doubled;
    type Future = std::future::Ready<Result<Response<Doubled>, Status>>;

    fn call(&mut self, request: Request<Streaming<Receipt>>) -> Self::Future {
        let doubled = request
            .into_inner()
            .map(|receipt| receipt.map(|receipt| Receipt { cents: 2 * receipt.cents, ..receipt }));
        std::future::ready(Ok(Response::new(Box::pin(doubled))))
    }
}

impl<B> Service<http::Request<B>> for Doubling
where
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
        Box::pin(
            async move { Ok(Grpc::new(ProstCodec::default()).streaming(Doubling, request).await) },
        )
    }
}

#[tokio::test]
async fn http_13_a_named_stream_flows_both_ways_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let service = filter().grpc(NO_WAIT).streaming(HISTORY).named_layer(Doubling);
    tokio::spawn(
        Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );

    let channel = Endpoint::from_shared(format!("http://{address}")).expect("a URL");
    let mut caller = Caller::new(in_time(channel.connect()).await.expect("the server listens"));
    let mut open = async |said| {
        let mut request = Request::new(said);
        request.metadata_mut().insert("idempotency-key", "k".parse().expect("ASCII"));
        caller.ready().await.expect("connected");
        let codec = ProstCodec::<Receipt, Receipt>::default();
        in_time(caller.streaming(request, HISTORY.parse().expect("a path"), codec)).await
    };
    let (say, said) = mpsc::channel(1);
    let mut answers = open(ReceiverStream::new(said)).await.expect("OK").into_inner();
    // Send each message only after the previous one was answered. This would never end if something
    // between client and server collected messages or answers.
    for cents in 1..=3 {
        say.send(Receipt { cents, ..Receipt::default() }).await.expect("it listens");
        let answer = in_time(answers.message()).await.expect("OK").expect("an answer");
        assert_eq!(answer.cents, 2 * cents);
    }
    let (_, silent) = mpsc::channel(1);
    let status = open(ReceiverStream::new(silent)).await.expect_err("it runs once");
    assert_eq!(status.code(), Code::AlreadyExists);
    drop(say);
    assert!(in_time(answers.message()).await.expect("OK").is_none());
}

#[tokio::test]
async fn http_3_around_a_whole_server_calls_without_a_key_pass_where_keys_are_optional() {
    let service = Scripted::new();
    let store = retryproof::SharedStore::new(retryproof::MemoryStore::new());
    let filter = filter_over(store, |config| config.web.required = false);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(
        Server::builder()
            .layer(filter.grpc(POLICY))
            .add_service(PaymentsServer::new(service.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let mut client = client(address).await;
    for _ in 0..2 {
        in_time(client.charge("k", &charge("alice", 1))).await.expect("OK");
    }
    assert_eq!(service.runs(), 1, "guarded");
    let channel = Endpoint::from_shared(format!("http://{address}")).expect("a URL");
    let mut caller = Caller::new(in_time(channel.connect()).await.expect("the server listens"));
    for runs in [2, 3] {
        caller.ready().await.expect("connected");
        let codec = ProstCodec::<_, Receipt>::default();
        let path = grpc_payments::proto::CHARGE.parse().expect("a path");
        in_time(caller.unary(Request::new(charge("alice", 1)), path, codec)).await.expect("OK");
        assert_eq!(service.runs(), runs, "not guarded");
    }
}
