// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other side, as payment providers do it: a delivery is repeated until it is answered with
//! 2xx, signed anew each time.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use tokio::time::sleep;

use crate::signature::Secret;

/// What became of an event.
#[derive(Debug)]
pub struct Delivered {
    /// Every answer; none where there was none.
    pub answers: Vec<Option<StatusCode>>,
    /// Whether the last one came from the receiver's records.
    pub replayed: bool,
}

impl Delivered {
    /// Whether the receiver has taken it.
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
    /// How long an answer is waited for.
    patience: Duration,
    /// The pauses between deliveries; when they are used up, the sender gives up.
    pauses: Vec<Duration>,
}

impl Sender {
    /// To that URL.
    #[must_use]
    pub fn new(client: Client, url: impl Into<String>, secret: Secret) -> Self {
        // A few, doubling; real providers continue for days.
        let pauses = (0..6).map(|n| Duration::from_millis(500 << n)).collect();
        Self { client, url: url.into(), secret, patience: Duration::from_secs(10), pauses }
    }

    /// Waits for an answer for so long, and between deliveries so long.
    #[must_use]
    pub fn paced(mut self, patience: Duration, pauses: Vec<Duration>) -> Self {
        (self.patience, self.pauses) = (patience, pauses);
        self
    }

    /// Until it is taken, or given up.
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
