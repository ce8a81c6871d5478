// SPDX-License-Identifier: MIT OR Apache-2.0
//! A shop whose `POST /orders` runs once per `Idempotency-Key`. The shop pays each order once,
//! through another service.
//!
//! Run the shop next to `cargo run -p payments`. Stop either program in the middle of an order,
//! start it again, and repeat the order: the order is paid once.

mod payments;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use payments::{Order, Payments, Unpaid};
use retryproof::http::axum::Lease;
use retryproof::http::{AnswerFate, Fate, IdempotencyFilter};
use retryproof::{IdempotencyEngine, idempotent};
use serde::Serialize;
use tokio::net::TcpListener;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "usage: shop [--listen ADDR] [--payments URL] [--store URL] [--patience SECONDS]\n\
    \x20 --listen ADDR         default 127.0.0.1:4809; port 0 picks a free one\n\
    \x20 --payments URL        the payments service; default http://127.0.0.1:4807, where `cargo run -p payments` is\n\
    \x20 --store URL           where the shop remembers its orders; default sqlite:shop.db\n\
    \x20 --patience SECONDS    how long an order waits for its payment; default 20\n";

#[derive(Clone, FromRef)]
struct Shop {
    idempotency: IdempotencyFilter,
    payments: Payments,
}

#[derive(Serialize)]
struct Confirmation {
    reference: String,
    payment: i64,
}

impl Fate for Unpaid {
    fn fate(&self) -> AnswerFate {
        match self {
            // The refusal is stored like any other answer, so every retry of the order gets it.
            Self::Declined(_) => AnswerFate::Store,
            // The order may be retried at once, even though it may already be paid: the next
            // attempt sends the same key to the payments service, and gets the stored answer if the
            // service has one.
            Self::NoAnswer => AnswerFate::Release,
            Self::Unclear => AnswerFate::Hold,
        }
    }
}

impl IntoResponse for Unpaid {
    fn into_response(self) -> Response {
        let fate = self.fate();
        match self {
            Self::Declined(why) => {
                (StatusCode::PAYMENT_REQUIRED, fate, format!("declined: {}\n", why.trim()))
                    .into_response()
            }
            Self::NoAnswer => (
                StatusCode::SERVICE_UNAVAILABLE,
                fate,
                "the payment is not confirmed yet; repeat the order\n",
            )
                .into_response(),
            Self::Unclear => (
                StatusCode::BAD_GATEWAY,
                fate,
                "the result of the payment is unclear; we will check it\n",
            )
                .into_response(),
        }
    }
}

/// Takes an order once per key. The lease is short, so that a retry can soon take over if the shop
/// dies.
#[idempotent(http, scope = "orders", ttl = "PT24H", lease = "PT3S", wait_timeout = "PT10S")]
async fn order(
    State(payments): State<Payments>,
    lease: Lease,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Confirmation>), Unpaid> {
    // The key stays the same after a takeover, so the payments service gets one key per order.
    let receipt = payments.charge(&lease.downstream_key("charge"), &order).await?;
    Ok((
        StatusCode::CREATED,
        Json(Confirmation { reference: order.reference, payment: receipt.payment }),
    ))
}

struct Options {
    listen: SocketAddr,
    payments: String,
    store: String,
    patience: Duration,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 4809)),
        payments: "http://127.0.0.1:4807".to_owned(),
        store: "sqlite:shop.db".to_owned(),
        patience: Duration::from_secs(20),
    };
    while let Some(option) = args.next() {
        let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
        let refused = || format!("{value:?} is not a valid value for {option}");
        match option.as_str() {
            "--listen" => options.listen = value.parse().map_err(|_| refused())?,
            "--payments" => options.payments = value,
            "--store" => options.store = value,
            "--patience" => {
                options.patience = Duration::from_secs(value.parse().map_err(|_| refused())?);
            }
            _ => return Err(format!("unknown argument {option:?}")),
        }
    }
    Ok(options)
}

async fn serve(options: Options) -> Result<(), BoxError> {
    retryproof::migrate(&options.store).await?;
    let engine = IdempotencyEngine::new(retryproof::connect(&options.store).await?);
    let idempotency = IdempotencyFilter::builder(engine).callers_share_keys().build()?;
    let payments = Payments::at(&options.payments, options.patience)?;
    let app = Router::new()
        .route("/orders", post(order))
        .with_state(Shop { idempotency: idempotency.clone(), payments });
    let listener = TcpListener::bind(options.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    idempotency.shutdown(Duration::from_secs(10)).await;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match parse(std::env::args().skip(1)) {
        Ok(options) => match serve(options).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("shop: {error}");
                ExitCode::FAILURE
            }
        },
        Err(problem) => {
            eprint!("shop: {problem}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
