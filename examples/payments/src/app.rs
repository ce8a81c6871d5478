// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service: two routes, one of them guarded by its annotation, with its charge and its record in one commit.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use retryproof::http::axum::Lease;
use retryproof::http::{AnswerFate, Fate, GuardedTx, IdempotencyFilter, TxError};
use retryproof::sqlite::{SqliteTx, SqliteTxSource};
use retryproof::{IdempotencyConfig, IdempotencyEngine, JoinedEngine, idempotent};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::BoxError;
use crate::ledger::{self, Charge, Ledger, Order, Receipt};
use crate::logs::{self, Log};

/// What the payment provider takes to answer, for want of a real one.
const PROVIDER: Duration = Duration::from_millis(25);

/// What it takes to hand the receipt to the mail system, where that is done in the handler.
const MAIL: Duration = Duration::from_millis(10);

#[derive(Clone, FromRef)]
struct App {
    idempotency: IdempotencyFilter,
    /// Where the handlers' transactions come from.
    transactions: JoinedEngine<SqliteTx>,
    ledger: Ledger,
}

/// Why a payment was not made, and what becomes of its key.
#[derive(Debug)]
enum PayError {
    /// The order is wrong, and will be wrong again: the refusal is stored like any answer.
    Amount(i64),
    /// The ledger did not take the charge, so nothing happened: the key is free for a retry.
    Ledger(rusqlite::Error),
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

/// Charges once per key. The lease is short, so that a retry soon takes over from a process that died.
///
/// The charge and the record of this answer are one commit, which is the guard's: taking a `GuardedTx` says so. An answer of 400 or above would
/// undo the charge.
#[idempotent(http, scope = "payments", ttl = "PT24H", lease = "PT3S", wait_timeout = "PT10S")]
async fn pay(
    tx: GuardedTx<SqliteTx>,
    lease: Lease,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Receipt>), PayError> {
    if order.amount <= 0 {
        return Err(PayError::Amount(order.amount));
    }
    // What is slow comes before the transaction, which holds up every other write to the file. A real provider gets a key of its own, the
    // same for this run and for whoever takes over from it: no commit of ours covers what happens over there.
    let _provider_key = lease.downstream_key("charge");
    tokio::time::sleep(PROVIDER).await;
    let receipt = ledger::charge(&*tx.begin().await?, &order).map_err(PayError::Ledger)?;
    // The mail would be a row too, for a sender to find. A process that dies here has charged nothing.
    tracing::info!(payment = receipt.payment, "charged");
    Ok((StatusCode::CREATED, Json(receipt)))
}

/// The same without the join, as it has to be where the effect is in another system: two commits, and a process can die between them. For
/// comparison: `--apart`.
#[idempotent(http, scope = "payments", ttl = "PT24H", lease = "PT3S", wait_timeout = "PT10S")]
async fn pay_apart(
    State(ledger): State<Ledger>,
    lease: Lease,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Receipt>), PayError> {
    if order.amount <= 0 {
        return Err(PayError::Amount(order.amount));
    }
    let _provider_key = lease.downstream_key("charge");
    tokio::time::sleep(PROVIDER).await;
    let charged = tokio::task::spawn_blocking(move || ledger.charge_apart(&order)).await;
    let receipt = match charged {
        Ok(receipt) => receipt.map_err(PayError::Ledger)?,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    };
    tracing::info!(payment = receipt.payment, "charged");
    // A process that dies here has charged and not completed: the window that the storm aims at.
    tokio::time::sleep(MAIL).await;
    Ok((StatusCode::CREATED, Json(receipt)))
}

async fn list(State(ledger): State<Ledger>) -> Result<Json<Vec<Charge>>, PayError> {
    let newest = tokio::task::spawn_blocking(move || ledger.newest(100)).await;
    match newest {
        Ok(charges) => charges.map(Json).map_err(PayError::Ledger),
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

/// Runs until SIGTERM or Ctrl-C, then lets what runs come to its end.
pub(crate) async fn serve(listen: SocketAddr, db: &Path, apart: bool) -> Result<(), BoxError> {
    logs::start();
    let config = IdempotencyConfig::load(None)?;
    let url = format!("sqlite:{}", db.display());
    // A service of this size may migrate at start; a larger one does it where its other migrations run.
    retryproof::migrate(&url).await?;
    let web = config.web.clone();
    let engine =
        IdempotencyEngine::builder(retryproof::connect(&url).await?).config(config).observer(Log).build()?;
    // On the file of the records: a store that could not join would be refused here.
    let transactions = engine.joined(SqliteTxSource::open(db)?)?;
    let filter = IdempotencyFilter::builder(engine).config(web).callers_share_keys().build()?;
    let app = App { idempotency: filter.clone(), transactions, ledger: Ledger::open(db)? };

    let payments = if apart { post(pay_apart) } else { post(pay) };
    let router = Router::new().route("/payments", payments.get(list)).with_state(app);
    let listener =
        TcpListener::bind(listen).await.map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    // Heard from before the line on: whoever reads it may send SIGTERM at once.
    let stop = stop()?;
    println!("listening on http://{}", listener.local_addr()?);
    println!("pay with: curl -i http://{}/payments -H 'Idempotency-Key: order-1' \\", listener.local_addr()?);
    println!(
        "  --json '{{\"account\":\"alice\",\"amount\":4200,\"reference\":\"one bicycle bell\"}}'   (then again)"
    );
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    let left = filter.shutdown(Duration::from_secs(10)).await;
    if left > 0 {
        tracing::warn!(left, "stopping with payments unfinished; their leases run out");
    }
    Ok(())
}

/// Resolves at SIGTERM or Ctrl-C, also at one that comes before it is polled.
fn stop() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
