// SPDX-License-Identifier: MIT OR Apache-2.0
//! A payments service in this process, the shop in a separate one, and a customer that retries.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRef, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::Mutex;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use retryproof::client::{IdempotencyMiddleware, IdempotentRequest as _, IdempotentResponse as _};
use retryproof::http::IdempotencyFilter;
use retryproof::http::axum::IdempotencyKey;
use retryproof::{IdempotencyEngine, MemoryStore, idempotent};
use retryproof_testkit::folder::Folder;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

/// The time limit for a step of these tests, in seconds.
pub(crate) const PATIENCE: u64 = 120;

#[derive(Debug, Clone)]
pub(crate) struct Charge {
    pub(crate) key: String,
}

/// What the payments service has done, and how it answers.
#[derive(Clone)]
struct Ledger {
    charges: Arc<watch::Sender<Vec<Charge>>>,
    asked: Arc<Mutex<Vec<String>>>,
    holding: Arc<watch::Sender<bool>>,
    /// If set, each request gets this status instead, as from a proxy in front of the service.
    astray: Arc<Mutex<Option<StatusCode>>>,
}

#[derive(Clone, FromRef)]
struct App {
    idempotency: IdempotencyFilter,
    ledger: Ledger,
}

#[idempotent(http, scope = "payments", lease = "PT5S", wait_timeout = "PT10S")]
async fn pay(
    State(ledger): State<Ledger>,
    key: IdempotencyKey,
    Json(order): Json<Value>,
) -> Result<(StatusCode, Json<Value>), (StatusCode, &'static str)> {
    if order["amount"].as_i64().is_none_or(|amount| amount <= 0) {
        return Err((StatusCode::UNPROCESSABLE_ENTITY, "the amount must be positive"));
    }
    let mut payment = 0;
    ledger.charges.send_modify(|charges| {
        charges.push(Charge { key: key.as_str().to_owned() });
        payment = charges.len();
    });
    // The charge is made. If the test holds answers, wait here until it lets them go.
    let _ = ledger.holding.subscribe().wait_for(|holding| !holding).await;
    Ok((StatusCode::CREATED, Json(json!({ "payment": payment }))))
}

/// Counts every request, because this layer is outside the guard.
async fn count(State(ledger): State<Ledger>, request: Request, next: Next) -> Response {
    let key = request.headers().get("idempotency-key").and_then(|value| value.to_str().ok());
    ledger.asked.lock().push(key.unwrap_or_default().to_owned());
    let astray = *ledger.astray.lock();
    match astray {
        Some(status) => (status, "not here\n").into_response(),
        None => next.run(request).await,
    }
}

pub(crate) struct Payments {
    pub(crate) address: SocketAddr,
    ledger: Ledger,
}

impl Payments {
    pub(crate) async fn start() -> Self {
        let ledger = Ledger {
            charges: Arc::new(watch::Sender::new(Vec::new())),
            asked: Arc::default(),
            holding: Arc::new(watch::Sender::new(false)),
            astray: Arc::default(),
        };
        let engine = IdempotencyEngine::new(MemoryStore::new());
        let idempotency = IdempotencyFilter::builder(engine).callers_share_keys().build().unwrap();
        let app = Router::new()
            .route("/payments", post(pay))
            .layer(axum::middleware::from_fn_with_state(ledger.clone(), count))
            .with_state(App { idempotency, ledger: ledger.clone() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(axum::serve(listener, app).into_future());
        Self { address, ledger }
    }

    pub(crate) fn hold_answers(&self, holding: bool) {
        self.ledger.holding.send_replace(holding);
    }

    pub(crate) fn lead_astray(&self, status: Option<StatusCode>) {
        *self.ledger.astray.lock() = status;
    }

    pub(crate) fn charges(&self) -> Vec<Charge> {
        self.ledger.charges.borrow().clone()
    }

    /// Returns the key of every request that arrived.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.ledger.asked.lock().clone()
    }

    pub(crate) async fn until_charges(&self, wanted: usize) {
        let mut charges = self.ledger.charges.subscribe();
        let charged = charges.wait_for(|charges| charges.len() >= wanted);
        timeout(Duration::from_secs(PATIENCE), charged).await.expect("charged in time").unwrap();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shop"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    // Ignore the machine's proxy settings, because the test calls its own loopback address.
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
    command
}

/// Runs a shop that refuses to start, and returns its exit code and its standard error.
pub(crate) async fn refusal(args: &[&str]) -> (Option<i32>, String) {
    let mut child = command(args).stderr(Stdio::piped()).spawn().expect("the shop starts");
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("its errors are piped");
    let ended = async {
        stderr.read_to_string(&mut said).await.expect("its errors are text");
        child.wait().await.expect("it can be waited for").code()
    };
    let code = timeout(Duration::from_secs(PATIENCE), ended).await.expect("it refuses in time");
    (code, said)
}

pub(crate) struct Shop {
    child: Child,
    address: String,
}

impl Shop {
    /// Starts a shop that waits `patience` seconds for its payments.
    pub(crate) async fn start(payments: SocketAddr, folder: &Folder, patience: u64) -> Self {
        let (payments, patience) = (format!("http://{payments}"), patience.to_string());
        let store = format!("sqlite:{}", folder.path().join("shop.db").display());
        let args =
            ["--listen", "127.0.0.1:0", "--payments", &payments, "--store", &store, "--patience"];
        let mut child =
            command(&args).arg(patience).stderr(Stdio::null()).spawn().expect("the shop starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output is piped")).lines();
        let line = timeout(Duration::from_secs(PATIENCE), lines.next_line())
            .await
            .expect("it starts in time");
        let line = line.expect("its output is text").expect("it says where it listens");
        let address = line.strip_prefix("listening on ").expect("a URL").to_owned();
        Self { child, address }
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("it was running");
    }
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) replayed: bool,
    pub(crate) body: String,
}

pub(crate) struct Customer {
    url: String,
    patient: ClientWithMiddleware,
    hasty: ClientWithMiddleware,
}

impl Customer {
    pub(crate) fn of(shop: &Shop) -> Self {
        let with = |attempts| {
            let middleware = IdempotencyMiddleware::builder()
                .attempts(attempts)
                .deadline(Duration::from_secs(PATIENCE))
                .attempt_timeout(Duration::from_secs(PATIENCE))
                .backoff(Duration::from_millis(10), Duration::from_millis(200));
            let direct = reqwest::Client::builder().no_proxy().build().unwrap();
            ClientBuilder::new(direct).with(middleware.build().unwrap()).build()
        };
        Self { url: format!("{}/orders", shop.address), patient: with(1_000), hasty: with(1) }
    }

    /// Repeats the order until an answer is final.
    pub(crate) async fn orders(&self, key: &str, amount: i64) -> Answer {
        Self::send(&self.patient, &self.url, key, amount).await.expect("an answer in the end")
    }

    /// Sends the order once.
    pub(crate) async fn tries(&self, key: &str, amount: i64) -> Option<Answer> {
        Self::send(&self.hasty, &self.url, key, amount).await
    }

    async fn send(
        client: &ClientWithMiddleware,
        url: &str,
        key: &str,
        amount: i64,
    ) -> Option<Answer> {
        let order = json!({ "account": "alice", "amount": amount, "reference": "a bicycle bell" });
        let answer = client.post(url).idempotency_key(key).json(&order).send().await.ok()?;
        let (status, replayed) = (answer.status(), answer.is_replay());
        Some(Answer { status, replayed, body: answer.text().await.expect("a whole body") })
    }
}
