// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service: two routes, one of them guarded by its annotation, with its charge and its record
//! in one commit; and the page around it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
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

/// How long the simulated payment provider takes to answer; the checkout page may ask for a slower
/// one.
const PROVIDER: Duration = Duration::from_millis(25);

/// How long it takes to pass the receipt to the mail system, if the handler does that.
const MAIL: Duration = Duration::from_millis(10);

/// `T` is a transaction on the ledger's database.
struct App<T> {
    idempotency: IdempotencyFilter,
    /// Where the handlers' transactions come from.
    transactions: JoinedEngine<T>,
    ledger: Ledger,
}

impl<T> Clone for App<T> {
    fn clone(&self) -> Self {
        let Self { idempotency, transactions, ledger } = self;
        Self {
            idempotency: idempotency.clone(),
            transactions: transactions.clone(),
            ledger: ledger.clone(),
        }
    }
}

impl<T> FromRef<App<T>> for IdempotencyFilter {
    fn from_ref(app: &App<T>) -> Self {
        app.idempotency.clone()
    }
}

impl<T> FromRef<App<T>> for JoinedEngine<T> {
    fn from_ref(app: &App<T>) -> Self {
        app.transactions.clone()
    }
}

impl<T> FromRef<App<T>> for Ledger {
    fn from_ref(app: &App<T>) -> Self {
        app.ledger.clone()
    }
}

/// Why a payment was not made, and what becomes of its key.
#[derive(Debug)]
enum PayError {
    /// The order is wrong, and will be wrong again: the refusal is stored like any answer.
    Amount(i64),
    /// The ledger did not take the charge, so nothing happened: the key is free for a retry.
    Ledger(BoxError),
    /// There was no transaction to be had: nothing happened either.
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
                tracing::error!(%error, "the ledger did not take a charge");
                (StatusCode::SERVICE_UNAVAILABLE, fate, "the ledger is busy; retry\n".to_owned())
            }
            Self::Transaction(error) => return error.into_response(),
        }
        .into_response()
    }
}

/// Charges once per key. The lease is short, so that a retry soon takes over from a process that
/// died.
///
/// The charge and the record of this answer are one commit, which is the guard's: taking a
/// `GuardedTx` says so. An answer of 400 or above would undo the charge.
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
    // The mail would be a row too, for a sender to find. A process that dies here has charged
    // nothing.
    tracing::info!(payment = receipt.payment, "charged");
    Ok((StatusCode::CREATED, Json(receipt)))
}

/// The same on PostgreSQL.
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

    /// The slow part comes before the transaction, which on SQLite delays every other write to the
    /// file. Send a real provider the key `lease.downstream_key(..)`, which stays the same after a
    /// takeover: no commit of ours covers what happens at the provider.
    async fn authorize(&self, lease: &Lease, delay: Delay) {
        let _provider_key = lease.downstream_key("charge");
        tokio::time::sleep(delay.0.unwrap_or(PROVIDER)).await;
    }
}

/// The same without the join, as it has to be where the effect is in another system: two commits,
/// and a process can die between them. For comparison: `--apart`.
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
    // A process that dies here has charged and not completed: the window that the storm aims at.
    tokio::time::sleep(MAIL).await;
    Ok((StatusCode::CREATED, Json(receipt)))
}

async fn list(State(ledger): State<Ledger>) -> Result<Json<Vec<Charge>>, PayError> {
    ledger.newest(100).await.map(Json).map_err(PayError::Ledger)
}

/// What to serve.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) listen: SocketAddr,
    /// The URL of the database of ledger and records.
    pub(crate) store: String,
    /// Charge and record in two commits.
    pub(crate) apart: bool,
    /// Adds the checkout page and the requests that it may make.
    pub(crate) page: bool,
}

/// Runs until SIGTERM or Ctrl-C, then lets what runs come to its end.
pub(crate) async fn serve(service: Service) -> Result<(), BoxError> {
    logs::start();
    let Service { listen, ref store, apart, page } = service;
    let config = IdempotencyConfig::load(None)?;
    // A service of this size may migrate at start; a larger one does it where its other migrations
    // run.
    retryproof::migrate(store).await?;
    let web = config.web.clone();
    let feed = Feed::new();
    let engine = IdempotencyEngine::builder(retryproof::connect(store).await?).config(config);
    let engine = engine.observer(Log).observer(Arc::clone(&feed)).build()?;
    let ledger = Ledger::open(store).await?;
    let filter =
        IdempotencyFilter::builder(engine.clone()).config(web).callers_share_keys().build()?;

    // On the database of the records: a store that could not join would be refused here.
    let router = match &ledger {
        Ledger::Sqlite(_) => {
            let file = store.strip_prefix("sqlite:").unwrap_or(store);
            let transactions = engine.joined(SqliteTxSource::open(file)?)?;
            let app = App { idempotency: filter.clone(), transactions, ledger };
            let payments = if apart { post(pay_apart) } else { post(pay) };
            Router::new().route("/payments", payments.get(list)).with_state(app)
        }
        Ledger::Postgres(pool) => {
            let transactions = engine.joined(pool.clone())?;
            let app = App { idempotency: filter.clone(), transactions, ledger };
            let payments = if apart { post(pay_apart) } else { post(pay_on_postgres) };
            Router::new().route("/payments", payments.get(list)).with_state(app)
        }
    };
    let router = if page { checkout::around(router, &feed) } else { router };
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    // The handler is installed before the line is printed, because its reader may send SIGTERM at
    // once.
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
    let stop = async move {
        stop.await;
        feed.close();
    };
    let service = router.into_make_service_with_connect_info::<Wire>();
    axum::serve(Wires(listener), service).with_graceful_shutdown(stop).await?;
    let left = filter.shutdown(Duration::from_secs(10)).await;
    if left > 0 {
        tracing::warn!(left, "stopping with payments unfinished; their leases run out");
    }
    Ok(())
}

/// Resolves at SIGTERM or Ctrl-C, also at one that comes before it is polled.
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
