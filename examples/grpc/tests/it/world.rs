// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests share: a service that waits on request, a server on a separate port, and the
//! details of a status, which are decoded with the tests' own messages.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use grpc_payments::client::Client;
use grpc_payments::proto::{
    ChargeRequest, HistoryRequest, Payments, PaymentsServer, Receipt, Receipts,
};
use prost::Message as _;
use retryproof::http::{IdempotencyFilter, Policy};
use retryproof::{IdempotencyConfig, IdempotencyEngine, MemoryStore, SharedStore};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataValue;
use tonic::service::LayerExt as _;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// The time limit for a step, so that a hanging test ends.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const POLICY: Policy =
    Policy::unnamed().with_lease(Duration::from_secs(30)).with_wait_timeout(PATIENCE);

/// The policy of the example, except that a duplicate does not wait.
pub(crate) const NO_WAIT: Policy = POLICY.with_wait_timeout(Duration::ZERO);

pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// A service that counts its runs. A charge of an account that begins with "wait" runs until the
/// test lets it go.
#[derive(Clone)]
pub(crate) struct Scripted {
    runs: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

impl Scripted {
    pub(crate) fn new() -> Self {
        Self { runs: Arc::default(), ended: Arc::default(), gate: Arc::new(Semaphore::new(0)) }
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    /// Lets one waiting call continue.
    pub(crate) fn go_on(&self) {
        self.gate.add_permits(1);
    }

    /// Waits until this many calls have begun.
    pub(crate) async fn begun(&self, runs: usize) {
        in_time(async {
            while self.runs() < runs {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

impl Payments for Scripted {
    async fn charge(&self, request: Request<ChargeRequest>) -> Result<Response<Receipt>, Status> {
        let number = self.runs.fetch_add(1, Ordering::SeqCst) as u64 + 1;
        let ChargeRequest { account, cents } = request.into_inner();
        if account.starts_with("wait") {
            self.gate.acquire().await.expect("open").forget();
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        if cents == 0 {
            let mut status = Status::with_details(
                tonic::Code::FailedPrecondition,
                "nothing to pay: 0 \u{20ac}",
                vec![0xff, 0, 1].into(),
            );
            status.metadata_mut().insert("x-run", MetadataValue::from(number));
            return Err(status);
        }
        let mut response = Response::new(Receipt { number, account, cents });
        response.metadata_mut().insert("x-run", MetadataValue::from(number));
        response.metadata_mut().insert_bin("x-raw-bin", MetadataValue::from_bytes(&[0, 1, 0xfe]));
        Ok(response)
    }

    async fn history(
        &self,
        request: Request<HistoryRequest>,
    ) -> Result<Response<Receipts>, Status> {
        let number = self.runs.fetch_add(1, Ordering::SeqCst) as u64 + 1;
        let account = request.into_inner().account;
        let count = account.len() as u64;
        let receipts =
            (0..count).map(move |cents| Ok(Receipt { number, account: account.clone(), cents }));
        Ok(Response::new(Box::pin(tokio_stream::iter(receipts))))
    }
}

pub(crate) fn filter_over(
    store: SharedStore,
    with: impl FnOnce(&mut IdempotencyConfig),
) -> IdempotencyFilter {
    let mut config = IdempotencyConfig::default();
    with(&mut config);
    let engine = IdempotencyEngine::builder(store).config(config).build().expect("valid settings");
    IdempotencyFilter::builder(engine).callers_share_keys().build().expect("valid settings")
}

pub(crate) fn filter() -> IdempotencyFilter {
    filter_over(SharedStore::new(MemoryStore::new()), |_| {})
}

/// Serves the service behind the filter until the test's runtime ends.
pub(crate) async fn serve(
    filter: &IdempotencyFilter,
    policy: Policy,
    service: &Scripted,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let service = filter.grpc(policy).named_layer(PaymentsServer::new(service.clone()));
    tokio::spawn(
        Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    address
}

pub(crate) async fn client(address: SocketAddr) -> Client {
    in_time(Client::connect(format!("http://{address}"))).await.expect("the server listens")
}

pub(crate) fn charge(account: &str, cents: u64) -> ChargeRequest {
    ChargeRequest { account: account.to_owned(), cents }
}

/// `google.rpc.Status`, written by hand from its definition.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(btree_map = "string, string", tag = "3")]
    metadata: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Span {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Span>,
}

/// The details of a refusal: its reason, whether to try again, and after how many seconds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: String,
    pub(crate) retryable: bool,
    pub(crate) seconds: Option<i64>,
}

pub(crate) fn refusal(status: &Status) -> Refusal {
    let details = RpcStatus::decode(status.details()).expect("a google.rpc.Status");
    assert_eq!((details.code, &details.message[..]), (i32::from(status.code()), status.message()));
    let find = |name: &str| {
        let url = format!("type.googleapis.com/google.rpc.{name}");
        details.details.iter().find(|any| any.type_url == url).map(|any| &any.value[..])
    };
    let info = ErrorInfo::decode(find("ErrorInfo").expect("an ErrorInfo")).expect("well-formed");
    assert_eq!(info.domain, "retryproof");
    let seconds = find("RetryInfo").map(|value| {
        let delay = RetryInfo::decode(value).expect("well-formed").retry_delay.expect("a delay");
        assert_eq!(delay.nanos, 0);
        delay.seconds
    });
    let said = |name: &str| {
        Some(status.metadata().get(name)?.to_str().ok()?.parse::<i64>().expect("a number"))
    };
    assert_eq!(said("retry-after"), seconds);
    assert_eq!(said("grpc-retry-pushback-ms"), seconds.map(|seconds| seconds * 1_000));
    Refusal { reason: info.reason, retryable: info.metadata["retryable"] == "true", seconds }
}
