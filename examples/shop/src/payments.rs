// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shop's client of the payments service. It retries calls, and never creates a random key.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use retryproof::client::{
    IdempotencyMiddleware, IdempotentRequest as _, IdempotentResponse as _, same_origin_redirects,
};
use serde::{Deserialize, Serialize};

use crate::BoxError;

/// An order to pay through the payments service.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Order {
    pub(crate) account: String,
    /// The amount in cents.
    pub(crate) amount: i64,
    pub(crate) reference: String,
}

/// The payments service's answer to a charge.
#[derive(Debug, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) payment: i64,
}

/// Why there is no receipt.
#[derive(Debug)]
pub(crate) enum Unpaid {
    /// The payments service declined the charge, and would decline it again.
    Declined(String),
    /// The shop got no answer in time. The account may have been charged, and the next call with
    /// the same key finds out.
    NoAnswer,
    /// The key was used before, and the service cannot give the result for this order. A person has
    /// to check.
    Unclear,
}

#[derive(Debug, Clone)]
pub(crate) struct Payments {
    url: String,
    client: ClientWithMiddleware,
}

impl Payments {
    /// Creates a client that waits for a charge for at most `patience`, including all attempts.
    pub(crate) fn at(url: &str, patience: Duration) -> Result<Self, BoxError> {
        let middleware = IdempotencyMiddleware::builder()
            .deadline(patience)
            // The client is used inside guarded actions, where the key has to come from the lease.
            .given_keys_only()
            .build()?;
        // Follow no redirect to another origin, because reqwest would send the key there.
        let direct = reqwest::Client::builder().redirect(same_origin_redirects()).build()?;
        let client = ClientBuilder::new(direct).with(middleware).build();
        Ok(Self { url: format!("{}/payments", url.trim_end_matches('/')), client })
    }

    /// Charges once per key, even if this method is called several times.
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
            status => Err(match answer.text().await {
                Ok(body) => refusal(status, body),
                Err(_) => Unpaid::NoAnswer,
            }),
        }
    }
}

/// The problem body of an error. The field `code` shows that the error comes from the payments
/// service's guard and not from its handler.
#[derive(Deserialize)]
struct Problem {
    code: String,
}

/// Decides what an error answer says about the charge. Only the service's own decision means that
/// the charge was declined. A proxy or a guard does not know whether an earlier attempt was
/// charged.
fn refusal(status: StatusCode, body: String) -> Unpaid {
    let problem = serde_json::from_str(&body).ok();
    match (status, problem.as_ref().map(|problem: &Problem| problem.code.as_str())) {
        // Either the order was changed after it was first sent, or the order was charged but the
        // answer could not be stored.
        (_, Some("fingerprint-mismatch" | "result-not-replayable")) => Unpaid::Unclear,
        (StatusCode::PAYMENT_REQUIRED | StatusCode::UNPROCESSABLE_ENTITY, None) => {
            Unpaid::Declined(body)
        }
        _ => Unpaid::NoAnswer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_10_only_a_word_of_the_payments_service_itself_is_a_no() {
        let of = |status, body: &str| match refusal(
            StatusCode::from_u16(status).unwrap(),
            body.to_owned(),
        ) {
            Unpaid::Declined(_) => "declined",
            Unpaid::NoAnswer => "no answer",
            Unpaid::Unclear => "unclear",
        };
        for (status, body, expected) in [
            (402, "no funds", "declined"),
            (422, "the amount must be positive", "declined"),
            (422, r#"{"amount":"must be positive"}"#, "declined"),
            (422, r#"{"code":"fingerprint-mismatch"}"#, "unclear"),
            (409, r#"{"code":"result-not-replayable"}"#, "unclear"),
            (409, r#"{"code":"in-flight"}"#, "no answer"),
            (400, r#"{"code":"key-missing"}"#, "no answer"),
            (401, "who are you", "no answer"),
            (404, "not here", "no answer"),
            (503, "", "no answer"),
        ] {
            assert_eq!(of(status, body), expected, "{status} {body}");
        }
    }
}
