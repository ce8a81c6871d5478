// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guarded endpoint. An event's changes and its record commit together (CMP-7).

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{FromRef, State};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use retryproof::http::{AnswerFate, GuardedTx, IdempotencyFilter, TxError};
use retryproof::sqlite::{SqliteTx, SqliteTxSource};
use retryproof::{IdempotencyConfig, IdempotencyEngine, JoinedEngine, idempotent};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::verify::{Trusted, verified};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The kinds of events that the receiver handles. It accepts and ignores all other kinds. If it
/// refused them, the sender would deliver them again for days.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum Event {
    /// A customer has paid.
    #[serde(rename = "payment.succeeded")]
    Paid { order: String, cents: i64 },
    #[serde(other)]
    Other,
}

/// A paid order, as `GET /paid` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paid {
    /// The order's number.
    pub order: String,
    /// The amount in cents.
    pub cents: i64,
}

/// Why an event was not accepted. Nothing was changed, and the event's key is free for the next
/// delivery.
enum Failed {
    /// No transaction could be opened.
    Transaction(TxError),
    /// The database did not accept the event's changes.
    Database(rusqlite::Error),
}

impl From<TxError> for Failed {
    fn from(error: TxError) -> Self {
        Self::Transaction(error)
    }
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        match self {
            Self::Transaction(error) => error.into_response(),
            Self::Database(error) => {
                tracing::error!(%error, "an event was not stored");
                (
                    StatusCode::SERVICE_UNAVAILABLE,
                    AnswerFate::Release,
                    "the event was not stored; deliver it again\n",
                )
                    .into_response()
            }
        }
    }
}

#[derive(Clone, FromRef)]
struct App {
    idempotency: IdempotencyFilter,
    transactions: JoinedEngine<SqliteTx>,
    books: Arc<Mutex<Connection>>,
}

/// Handles an event once. The ttl is longer than the time for which any sender repeats a delivery.
/// The wait timeout is shorter than the time for which a sender waits for an answer.
#[idempotent(
    http,
    scope = "webhooks.payments",
    ttl = "P30D",
    lease = "PT30S",
    wait_timeout = "PT3S"
)]
async fn receive(tx: GuardedTx<SqliteTx>, Json(event): Json<Event>) -> Result<StatusCode, Failed> {
    if let Event::Paid { order, cents } = event {
        let paid = "INSERT INTO paid (number, cents) VALUES (?1, ?2)";
        tx.begin().await?.execute(paid, (&order, cents))?;
    }
    Ok(StatusCode::OK)
}

async fn paid(State(books): State<Arc<Mutex<Connection>>>) -> Result<Json<Vec<Paid>>, Failed> {
    let books = books.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = books.prepare_cached("SELECT number, cents FROM paid ORDER BY rowid")?;
    let rows = all.query_map([], |row| Ok(Paid { order: row.get(0)?, cents: row.get(1)? }))?;
    Ok(Json(rows.collect::<Result<_, _>>()?))
}

/// Returns the receiver, which keeps its data and its records in one file, and a filter for the
/// shutdown.
///
/// # Errors
/// If the file cannot be used.
pub async fn receiver(
    file: &Path,
    trusted: Trusted,
) -> Result<(Router, IdempotencyFilter), BoxError> {
    let books = Connection::open(file)?;
    books.busy_timeout(Duration::from_secs(5))?;
    books.pragma_update(None, "journal_mode", "wal")?;
    books.execute(
        "CREATE TABLE IF NOT EXISTS paid (number TEXT NOT NULL, cents INTEGER NOT NULL)",
        [],
    )?;

    let store = format!("sqlite:{}", file.display());
    retryproof::migrate(&store).await?;
    let config = IdempotencyConfig::load(None)?;
    let web = config.web.clone();
    // The outer layer must set the header from which the guard reads its key, even if the
    // configuration renames that header.
    let key_header = HeaderName::from_bytes(web.key_header.as_bytes())?;
    let engine =
        IdempotencyEngine::builder(retryproof::connect(&store).await?).config(config).build()?;
    let transactions = engine.joined(SqliteTxSource::open(file)?)?;
    // There is only one sender, and its ids are unique. With several senders, give each its own
    // scope or caller.
    let idempotency =
        IdempotencyFilter::builder(engine).config(web).callers_share_keys().build()?;

    let app =
        App { idempotency: idempotency.clone(), transactions, books: Arc::new(Mutex::new(books)) };
    let router = Router::new()
        .route("/webhooks/payments", post(receive))
        // This layer is outside the guard, so a forged delivery does not reach the guard.
        .layer(axum::middleware::from_fn_with_state((trusted, key_header), verified))
        .route("/paid", get(paid))
        .with_state(app);
    Ok((router, idempotency))
}
