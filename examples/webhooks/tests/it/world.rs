// SPDX-License-Identifier: MIT OR Apache-2.0
//! A receiver on a socket, senders, and a handler that can be delayed and made to fail.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRef, State};
use axum::http::{HeaderName, StatusCode};
use axum::routing::post;
use reqwest::{Client, RequestBuilder};
use retryproof::http::{AnswerFate, IdempotencyFilter};
use retryproof::{IdempotencyEngine, MemoryStore, idempotent};
use retryproof_testkit::folder::Folder;
use tokio::sync::watch;
use tokio::time::timeout;
use webhooks::inbox::{self, Paid};
use webhooks::sender::Sender;
use webhooks::signature::Secret;
use webhooks::verify::{Trusted, verified};

/// The time limit for a step of these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn secret() -> Secret {
    Secret::new(b"whsec_of_the_tests").expect("long enough")
}

/// Ignores the machine's proxy settings, because the tests call its own loopback address.
pub(crate) fn client() -> Client {
    Client::builder().no_proxy().build().expect("a client")
}

pub(crate) fn now() -> u64 {
    retryproof::clock::wall_clock_micros() / 1_000_000
}

pub(crate) fn paid(id: &str, order: &str) -> String {
    format!(r#"{{"id":"{id}","type":"payment.succeeded","order":"{order}","cents":4200}}"#)
}

async fn listen(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(axum::serve(listener, router).into_future());
    address
}

/// The example's receiver, with a new database.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    pub(crate) folder: Folder,
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        Self::trusting(Trusted::with([secret()])).await
    }

    pub(crate) async fn trusting(trusted: Trusted) -> Self {
        let folder = Folder::new("webhooks").expect("a folder");
        let (router, _) =
            inbox::receiver(&folder.path().join("webhooks.db"), trusted).await.expect("it starts");
        Self { address: listen(router).await, folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/webhooks/payments", self.address)
    }

    /// Creates a sender that repeats deliveries as often as necessary, with short pauses.
    pub(crate) fn sender(&self) -> Sender {
        impatient(self.url())
    }

    /// Builds a delivery by hand.
    pub(crate) fn delivery(&self, body: impl Into<Vec<u8>>) -> RequestBuilder {
        client().post(self.url()).header("content-type", "application/json").body(body.into())
    }

    /// Builds a delivery with a signature.
    pub(crate) fn signed(&self, body: &str) -> RequestBuilder {
        self.delivery(body).header("webhook-signature", secret().sign(now(), body.as_bytes()))
    }

    /// Returns the orders in the receiver's database.
    pub(crate) async fn paid(&self) -> Vec<String> {
        let books =
            client().get(format!("http://{}/paid", self.address)).send().await.expect("an answer");
        let rows: Vec<Paid> =
            serde_json::from_slice(&books.bytes().await.expect("a body")).expect("rows");
        rows.into_iter().map(|row| row.order).collect()
    }
}

pub(crate) fn impatient(url: String) -> Sender {
    Sender::new(client(), url, secret()).paced(PATIENCE, vec![Duration::from_millis(20); 3_000])
}

/// A handler behind the same layer. It reports when it runs, waits until the test opens the gate,
/// and may fail.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) started: Arc<watch::Sender<u32>>,
    pub(crate) open: Arc<watch::Sender<bool>>,
    pub(crate) failures: Arc<AtomicU32>,
}

#[derive(Clone, FromRef)]
struct App {
    idempotency: IdempotencyFilter,
    gate: Gate,
}

#[idempotent(http, scope = "webhooks.gated", wait_timeout = "PT0S")]
async fn gated(
    State(gate): State<Gate>,
    _body: Bytes,
) -> Result<StatusCode, (StatusCode, AnswerFate, &'static str)> {
    gate.started.send_modify(|started| *started += 1);
    let _ = gate.open.subscribe().wait_for(|open| *open).await;
    let fails =
        gate.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    if fails.is_ok() {
        Err((StatusCode::SERVICE_UNAVAILABLE, AnswerFate::Release, "again\n"))
    } else {
        Ok(StatusCode::OK)
    }
}

impl Gate {
    /// Serves a gated handler, and returns it with its URL.
    pub(crate) async fn serve(open: bool, failures: u32) -> (Self, String) {
        let gate = Self {
            started: Arc::new(watch::Sender::new(0)),
            open: Arc::new(watch::Sender::new(open)),
            failures: Arc::new(AtomicU32::new(failures)),
        };
        let engine = IdempotencyEngine::new(MemoryStore::new());
        let idempotency =
            IdempotencyFilter::builder(engine).callers_share_keys().build().expect("a filter");
        let router = Router::new()
            .route("/hooks", post(gated))
            .layer(axum::middleware::from_fn_with_state(
                (Trusted::with([secret()]), HeaderName::from_static("idempotency-key")),
                verified,
            ))
            .with_state(App { idempotency, gate: gate.clone() });
        (gate, format!("http://{}/hooks", listen(router).await))
    }

    pub(crate) async fn until_started(&self, wanted: u32) {
        let mut started = self.started.subscribe();
        let reached = started.wait_for(|started| *started >= wanted);
        timeout(PATIENCE, reached).await.expect("it starts in time").expect("it is there");
    }

    pub(crate) fn runs(&self) -> u32 {
        *self.started.borrow()
    }
}
