// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sender of events. Like a payment provider, it repeats each delivery, with a new signature,
//! until the receiver answers with 2xx.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use tokio::time::sleep;

use crate::signature::Secret;

/// The result of delivering an event.
#[derive(Debug)]
pub struct Delivered {
    /// The answers in order; `None` for a delivery without an answer.
    pub answers: Vec<Option<StatusCode>>,
    /// Whether the last answer was a replay.
    pub replayed: bool,
}

impl Delivered {
    /// Returns whether the receiver has accepted the event.
    #[must_use]
    pub fn taken(&self) -> bool {
        self.answers.last().is_some_and(|answer| answer.is_some_and(|status| status.is_success()))
    }
}

/// Delivers to one receiver.
#[derive(Debug, Clone)]
pub struct Sender {
    client: Client,
    url: String,
    secret: Secret,
    /// How long to wait for an answer.
    patience: Duration,
    /// The pauses between deliveries. After the last one, the sender makes one more delivery and
    /// gives up.
    pauses: Vec<Duration>,
}

impl Sender {
    /// Creates a sender that delivers to `url`.
    #[must_use]
    pub fn new(client: Client, url: impl Into<String>, secret: Secret) -> Self {
        // Use a few pauses, each twice as long as the one before. Real providers retry for days.
        let pauses = (0..6).map(|n| Duration::from_millis(500 << n)).collect();
        Self { client, url: url.into(), secret, patience: Duration::from_secs(10), pauses }
    }

    /// Sets how long to wait for an answer, and the pauses between deliveries.
    #[must_use]
    pub fn paced(mut self, patience: Duration, pauses: Vec<Duration>) -> Self {
        (self.patience, self.pauses) = (patience, pauses);
        self
    }

    /// Delivers an event until the receiver accepts it, or until the pauses are used up.
    pub async fn deliver(&self, event: &str) -> Delivered {
        let mut delivered = Delivered { answers: Vec::new(), replayed: false };
        for pause in self.pauses.iter().map(Some).chain([None]) {
            let now = retryproof::clock::wall_clock_micros() / 1_000_000;
            let request = self
                .client
                .post(&self.url)
                .header("content-type", "application/json")
                .header("webhook-signature", self.secret.sign(now, event.as_bytes()))
                .timeout(self.patience)
                .body(event.to_owned());
            let answer = request.send().await.ok();
            delivered.replayed = answer
                .as_ref()
                .is_some_and(|answer| answer.headers().contains_key("idempotent-replayed"));
            delivered.answers.push(answer.map(|answer| answer.status()));
            match pause {
                Some(pause) if !delivered.taken() => sleep(*pause).await,
                _ => break,
            }
        }
        delivered
    }
}
