// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shop's side of the payments service: a client that retries, and never draws a key.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use retryproof::client::{CallError, IdempotencyMiddleware, IdempotentRequest as _, IdempotentResponse as _};
use serde::{Deserialize, Serialize};

/// What the payments service is asked to charge.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Order {
    pub(crate) account: String,
    /// In cents.
    pub(crate) amount: i64,
    pub(crate) reference: String,
}

/// What it answers.
#[derive(Debug, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) payment: i64,
}

/// Why there is no receipt.
#[derive(Debug)]
pub(crate) enum Unpaid {
    /// The payments service has decided, and would decide the same again.
    Declined(String),
    /// No answer for as long as the shop waits. It may have been charged: the next call with the same key finds out.
    NoAnswer,
    /// It was charged, or not, and the service cannot say: somebody has to look.
    Unclear,
}

#[derive(Debug, Clone)]
pub(crate) struct Payments {
    url: String,
    client: ClientWithMiddleware,
}

impl Payments {
    /// A charge is waited for up to `patience`, all attempts together.
    pub(crate) fn at(url: &str, patience: Duration) -> Result<Self, CallError> {
        let middleware = IdempotencyMiddleware::builder()
            .deadline(patience)
            // It is called inside of guarded actions, where a key has to come from the lease.
            .given_keys_only()
            .build()?;
        let client = ClientBuilder::new(reqwest::Client::new()).with(middleware).build();
        Ok(Self { url: format!("{}/payments", url.trim_end_matches('/')), client })
    }

    /// Charges once per key, whoever calls and however often.
    pub(crate) async fn charge(&self, key: &str, order: &Order) -> Result<Receipt, Unpaid> {
        let request = self.client.post(&self.url).idempotency_key(key).json(order);
        let answer = request.send().await.map_err(|error| {
            tracing::warn!(%error, "no answer from the payments service");
            Unpaid::NoAnswer
        })?;
        if let Some(call) = answer.call() {
            tracing::info!(attempts = call.attempts, replayed = call.replayed, status = %answer.status(), "payments");
            if call.gave_up.is_some() {
                return Err(Unpaid::NoAnswer);
            }
        }
        match answer.status() {
            status if status.is_success() => answer.json().await.map_err(|_| Unpaid::Unclear),
            // Done, and its answer was not kept; or this order was changed after it was paid.
            StatusCode::CONFLICT => Err(Unpaid::Unclear),
            status if status.is_client_error() => {
                Err(Unpaid::Declined(answer.text().await.unwrap_or_default()))
            }
            _ => Err(Unpaid::NoAnswer),
        }
    }
}
