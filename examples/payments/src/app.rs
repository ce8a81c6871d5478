// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service: two routes, and the page around them. An annotation guards one route, whose charge
//! and record commit together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use axum::{Json, Router};
use retryproof::http::axum::Lease;
use retryproof::http::{AnswerFate, Fate, GuardedTx, IdempotencyFilter, TxError};
use retryproof::postgres::PostgresTx;
use retryproof::sqlite::{SqliteTx, SqliteTxSource};
use retryproof::{IdempotencyConfig, IdempotencyEngine, JoinedEngine, idempotent};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::BoxError;
use crate::checkout::{self, Delay, Feed, Wire, Wires};
use crate::ledger::{self, Charge, Ledger, Order, Receipt};
use crate::logs::{self, Log};
use crate::operate::Telemetry;

/// How long the simulated payment provider takes to answer. The checkout page can request a slower
/// provider.
const PROVIDER: Duration = Duration::from_millis(25);

/// How long `pay_apart` takes to pass the receipt to the mail system.
const MAIL: Duration = Duration::from_millis(10);

/// The router's state. `T` is the engine that opens the handlers' transactions, if they use any.
#[derive(Clone)]
struct App<T> {
    idempotency: IdempotencyFilter,
    ledger: Ledger,
    transactions: T,
}

impl<T> FromRef<App<T>> for IdempotencyFilter {
    fn from_ref(app: &App<T>) -> Self {
        app.idempotency.clone()
    }
}

impl<T> FromRef<App<JoinedEngine<T>>> for JoinedEngine<T> {
    fn from_ref(app: &App<JoinedEngine<T>>) -> Self {
        app.transactions.clone()
    }
}

impl<T> FromRef<App<T>> for Ledger {
    fn from_ref(app: &App<T>) -> Self {
        app.ledger.clone()
    }
}

/// Why a payment was not made. The reason determines what happens to the key.
#[derive(Debug)]
enum PayError {
    /// The order is wrong, and a retry would be wrong too. The refusal is stored like any answer.
    Amount(i64),
    /// The ledger refused the charge, so nothing happened. The key is free for a retry.
    Ledger(BoxError),
    /// No transaction could be used, so nothing happened.
    Transaction(TxError),
}

impl From<TxError> for PayError {
    fn from(error: TxError) -> Self {
        Self::Transaction(error)
    }
}

impl Fate for PayError {
    fn fate(&self) -> AnswerFate {
        match self {
            Self::Amount(_) => AnswerFate::Store,
            Self::Ledger(_) => AnswerFate::Release,
            Self::Transaction(error) => error.fate(),
        }
    }
}

impl IntoResponse for PayError {
    fn into_response(self) -> Response {
        let fate = self.fate();
        match self {
            Self::Amount(amount) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                fate,
                format!("the amount must be positive, not {amount}\n"),
            ),
            Self::Ledger(error) => {
                tracing::error!(%error, "the ledger did not store a charge");
                (StatusCode::SERVICE_UNAVAILABLE, fate, "the ledger is busy; retry\n".to_owned())
            }
            Self::Transaction(error) => return error.into_response(),
        }
        .into_response()
    }
}

/// Charges once per key. The lease is short, so that a retry can soon take over if the process
/// dies.
///
/// Because the handler takes a `GuardedTx`, the guard commits the charge together with the answer's
/// record. An answer with a status of 400 or above would roll the charge back.
#[idempotent(http, scope = "payments", ttl = "PT24H", lease = "PT3S", wait_timeout = "PT10S")]
async fn pay(
    tx: GuardedTx<SqliteTx>,
    lease: Lease,
    delay: Delay,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Receipt>), PayError> {
    order.check()?;
    order.authorize(&lease, delay).await;
    let receipt = ledger::in_sqlite(&**tx.begin().await?, &order).map_err(PayError::Ledger)?;
    // A real program would also insert a row for the customer's mail here, and a separate task
    // would send the mail. If the process dies before the commit, nothing is charged.
    tracing::info!(payment = receipt.payment, "charged");
    Ok((StatusCode::CREATED, Json(receipt)))
}

/// Does the same as `pay` on PostgreSQL.
#[idempotent(http, scope = "payments", ttl = "PT24H", lease = "PT3S", wait_timeout = "PT10S")]
async fn pay_on_postgres(
    tx: GuardedTx<PostgresTx>,
    lease: Lease,
    delay: Delay,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Receipt>), PayError> {
    order.check()?;
    order.authorize(&lease, delay).await;
    let receipt =
        ledger::in_postgres(&mut *tx.begin().await?, &order).await.map_err(PayError::Ledger)?;
    tracing::info!(payment = receipt.payment, "charged");
    Ok((StatusCode::CREATED, Json(receipt)))
}

impl Order {
    fn check(&self) -> Result<(), PayError> {
        if self.amount > 0 { Ok(()) } else { Err(PayError::Amount(self.amount)) }
    }

    /// Simulates the call to the provider. This slow step comes before the transaction, because an
    /// open transaction on SQLite delays all other writes to the file. Send a real provider the key
    /// `lease.downstream_key(..)`, which stays the same after a takeover, because no commit of ours
    /// covers the provider's effects.
    async fn authorize(&self, lease: &Lease, delay: Delay) {
        let _provider_key = lease.downstream_key("charge");
        tokio::time::sleep(delay.0.unwrap_or(PROVIDER)).await;
    }
}

/// Charges without joining the transaction, for comparison (`--apart`). The charge and the record
/// are two commits, and the process can die between them. Any effect in another system has this
/// problem.
#[idempotent(http, scope = "payments", ttl = "PT24H", lease = "PT3S", wait_timeout = "PT10S")]
async fn pay_apart(
    State(ledger): State<Ledger>,
    lease: Lease,
    delay: Delay,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Receipt>), PayError> {
    order.check()?;
    order.authorize(&lease, delay).await;
    let receipt = ledger.charge_apart(&order).await.map_err(PayError::Ledger)?;
    tracing::info!(payment = receipt.payment, "charged");
    // If the process dies here, the charge is committed but the record is not complete. The storm
    // tries to hit this window.
    tokio::time::sleep(MAIL).await;
    Ok((StatusCode::CREATED, Json(receipt)))
}

async fn list(State(ledger): State<Ledger>) -> Result<Json<Vec<Charge>>, PayError> {
    ledger.newest(100).await.map(Json).map_err(PayError::Ledger)
}

/// The settings of the service.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) listen: SocketAddr,
    /// The URL of the database that contains the ledger and, by default, the records.
    pub(crate) store: String,
    /// The URL of another store for the records. Charges and records then commit separately.
    pub(crate) records: Option<String>,
    /// Whether charges and records commit separately.
    pub(crate) apart: bool,
    /// Whether to add the checkout page, and the headers that it can send.
    pub(crate) page: bool,
    /// The address for operators, with metrics, spans and their page.
    pub(crate) operate: Option<SocketAddr>,
}

/// Serves until SIGTERM or Ctrl-C, then waits for running payments.
pub(crate) async fn serve(service: Service) -> Result<(), BoxError> {
    let Service { listen, ref store, ref records, apart, page, operate } = service;
    let records = records.as_ref().unwrap_or(store);
    let telemetry = operate.map(|_| Telemetry::new()).transpose()?;
    logs::start(telemetry.as_ref());
    let mut config = IdempotencyConfig::load(None)?;
    // Name the scope in the configuration, so that its counters for alerts exist with the value 0
    // from the start.
    config.scopes.entry("payments".to_owned()).or_default();
    // A small service can migrate when it starts. A larger service calls `migrate` where its other
    // migrations run.
    retryproof::migrate(records).await?;
    let web = config.web.clone();
    let feed = Feed::new();
    let mut engine = IdempotencyEngine::builder(retryproof::connect(records).await?);
    if let Some(telemetry) = &telemetry {
        engine = telemetry.observe(engine, &config);
    }
    let engine = engine.config(config).observer(Log).observer(Arc::clone(&feed)).build()?;
    let ledger = Ledger::open(store).await?;
    let filter =
        IdempotencyFilter::builder(engine.clone()).config(web).callers_share_keys().build()?;

    let idempotency = filter.clone();
    // Joining the engine to the database fails here if the store cannot join transactions.
    let router = match &ledger {
        _ if apart => routes(post(pay_apart), App { idempotency, ledger, transactions: () }),
        Ledger::Sqlite(_) => {
            let file = store.strip_prefix("sqlite:").unwrap_or(store);
            let transactions = engine.joined(SqliteTxSource::open(file)?)?;
            routes(post(pay), App { idempotency, ledger, transactions })
        }
        Ledger::Postgres(pool) => {
            let transactions = engine.joined(pool.clone())?;
            routes(post(pay_on_postgres), App { idempotency, ledger, transactions })
        }
    };
    let router = if page { checkout::around(router, &feed) } else { router };
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    // Install the signal handler before printing the address, because the process that reads the
    // line may send SIGTERM at once.
    let stop = stop()?;
    println!("listening on http://{}", listener.local_addr()?);
    println!(
        "pay with: curl -i http://{}/payments -H 'Idempotency-Key: order-1' \\",
        listener.local_addr()?
    );
    println!(
        "  --json '{{\"account\":\"alice\",\"amount\":4200,\"reference\":\"one bicycle bell\"}}'   (then again)"
    );
    if page {
        println!("or open http://{}/ in a browser", listener.local_addr()?);
    }
    if let (Some(telemetry), Some(listen)) = (telemetry, operate) {
        telemetry.serve(listen, &engine).await?;
    }
    let stop = async move {
        stop.await;
        feed.close();
    };
    let service = router.into_make_service_with_connect_info::<Wire>();
    axum::serve(Wires(listener), service).with_graceful_shutdown(stop).await?;
    let left = filter.shutdown(Duration::from_secs(10)).await;
    if left > 0 {
        tracing::warn!(left, "stopped while payments were running; their leases will expire");
    }
    Ok(())
}

/// The routes of the service.
fn routes<T>(payments: MethodRouter<App<T>>, app: App<T>) -> Router
where
    T: Clone + Send + Sync + 'static,
{
    Router::new().route("/payments", payments.get(list)).with_state(app)
}

/// Resolves at SIGTERM or Ctrl-C, even if the signal arrives before the first poll.
fn stop() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
