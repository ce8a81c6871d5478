// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NatsListenerBuilder`]: the settings of a listener, and the check of its consumer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::context::GetStreamByNameErrorKind;
use retryproof_core::listener::{Backoff, Tally};
use retryproof_core::{Error, ErrorKind, IntoScope, Result, Scope};
use tokio::sync::Semaphore;

use crate::NatsListener;
use crate::answer::Broker;
use crate::delivery::{KeyOf, message_id};
use crate::handle::Desk;

/// For one answer of the server.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a request for messages stays open while there are none.
const PULL_FOR: Duration = Duration::from_secs(2);
/// What the server waits for an acknowledgement where its consumer does not say.
const DEFAULT_ACK_WAIT: Duration = Duration::from_secs(30);

/// The settings of a [`NatsListener`]; made by [`NatsListener::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct NatsListenerBuilder {
    jetstream: Context,
    consumer: PullConsumer,
    scope: Result<Scope>,
    key_of: Arc<KeyOf>,
    dead_letters: Option<String>,
    batch: usize,
    concurrency: usize,
    parked: usize,
    backoff: Backoff,
    give_up_after: Option<u64>,
    pull_for: Duration,
    drain: Duration,
}

impl fmt::Debug for NatsListenerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsListenerBuilder")
            .field("dead_letters", &self.dead_letters)
            .field("batch", &self.batch)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

impl NatsListenerBuilder {
    pub(crate) fn new(jetstream: Context, consumer: PullConsumer, scope: impl IntoScope) -> Self {
        Self {
            jetstream,
            consumer,
            scope: scope.into_scope(),
            key_of: Arc::new(message_id),
            dead_letters: None,
            batch: 100,
            concurrency: 16,
            parked: 500,
            backoff: Backoff::default(),
            give_up_after: None,
            pull_for: PULL_FOR,
            drain: Duration::from_secs(30),
        }
    }

    /// Where messages go that cannot be handled (LST-2): a subject that another stream takes.
    /// Required: without it the only answer to such a message would be to forget it.
    pub fn dead_letters(mut self, subject: impl Into<String>) -> Self {
        self.dead_letters = Some(subject.into());
        self
    }

    /// Takes the key from elsewhere than the header `Nats-Msg-Id`. `None` makes the message a dead
    /// letter, and so does a panic.
    pub fn key<F>(mut self, key_of: F) -> Self
    where
        F: Fn(&Message) -> Option<String> + Send + Sync + 'static,
    {
        self.key_of = Arc::new(key_of);
        self
    }

    /// How many messages are fetched and not answered, besides those that are parked; 100 unless
    /// set.
    pub fn batch(mut self, messages: usize) -> Self {
        self.batch = messages.clamp(1, 10_000);
        self
    }

    /// How many messages are handled side by side; 16 unless set.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers.clamp(1, 10_000);
        self
    }

    /// How many messages may be parked here while another consumer works on their keys; 500 unless
    /// set, and never more than half of the consumer's `max_ack_pending`. One more is given back
    /// with a delay, which costs it a delivery.
    pub fn parked(mut self, messages: usize) -> Self {
        self.parked = messages.min(10_000);
        self
    }

    /// How long a message that failed stays away: 1 s, doubled with each delivery up to 1 min,
    /// unless set.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Makes a message a dead letter that fails in this delivery or a later one. The consumer's
    /// `max_deliver` does that as well; this needs no limit at the server, which drops a message
    /// without a word when a consumer dies in its last delivery.
    pub fn give_up_after(mut self, deliveries: u64) -> Self {
        self.give_up_after = Some(deliveries.max(1));
        self
    }

    /// How long a request for messages stays open while there are none; 2 s unless set. A stop
    /// waits for the open one, so that nothing that the server sends meanwhile is left to its
    /// `ack_wait`, and gives back what was not begun with this delay.
    pub fn pull_for(mut self, at_most: Duration) -> Self {
        self.pull_for = at_most.clamp(Duration::from_millis(100), Duration::from_secs(60));
        self
    }

    /// How long a stop waits for what is being handled; 30 s unless set.
    pub fn drain(mut self, at_most: Duration) -> Self {
        self.drain = at_most;
        self
    }

    /// Checks the settings against the server.
    ///
    /// # Errors
    /// [`ErrorKind::Config`]: no subject for dead letters; one that no stream takes, or the
    /// consumer's own stream (a dead letter would come round again); a consumer whose messages are
    /// not acknowledged one by one, or that delivers no bodies. [`ErrorKind::Invalid`] for the
    /// scope. [`ErrorKind::Unavailable`] when the server does not answer.
    pub async fn build(self) -> Result<NatsListener> {
        let scope = self.scope?;
        let wrong = |why: &'static str| Error::new(ErrorKind::Config, why);
        let info = self.consumer.cached_info();
        let config = &info.config;
        if config.ack_policy != AckPolicy::Explicit {
            return Err(wrong(
                "the consumer does not acknowledge its messages one by one: its ack_policy has \
                 to be explicit",
            ));
        }
        if config.headers_only {
            return Err(wrong(
                "the consumer delivers headers only, and a listener needs the bodies",
            ));
        }
        let dead_letters = self.dead_letters.ok_or_else(|| {
            wrong(
                "a listener needs a subject for its dead letters: `.dead_letters(\"orders.dead\")`",
            )
        })?;
        match self.jetstream.stream_by_subject(dead_letters.clone()).await {
            Ok(stream) if stream == info.stream_name => {
                return Err(wrong(
                    "the dead letters go to the stream that is listened to; give them one of their own",
                ));
            }
            Ok(_) => {}
            Err(error) if error.kind() == GetStreamByNameErrorKind::Request => {
                return Err(Error::unavailable(
                    "the server was not asked for the stream of the dead letters",
                )
                .because(error));
            }
            Err(_) => {
                return Err(wrong("no stream takes the subject of the dead letters")
                    .with("subject", &dead_letters));
            }
        }
        let ack_wait =
            Some(config.ack_wait).filter(|wait| !wait.is_zero()).unwrap_or(DEFAULT_ACK_WAIT);
        let shortest = config.backoff.iter().copied().chain([ack_wait]).min().unwrap_or(ack_wait);
        let limit = |value: i64| u64::try_from(value).ok().filter(|limit| *limit > 0);
        let at_server = limit(config.max_deliver);
        let most_pending = limit(config.max_ack_pending)
            .map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        let batch = limit(config.max_batch)
            .map_or(self.batch, |most| self.batch.min(usize::try_from(most).unwrap_or(usize::MAX)));
        let pull_for = Some(config.max_expires)
            .filter(|most| !most.is_zero())
            .map_or(self.pull_for, |most| most.min(self.pull_for));
        let client = self.jetstream.client();
        let desk = Desk {
            broker: Broker {
                jetstream: self.jetstream,
                client,
                answer_within: ANSWER_WITHIN,
                dead_letters,
            },
            scope,
            key_of: self.key_of,
            // Three times within the shortest wait: two may get lost.
            progress_every: (shortest / 3).max(Duration::from_millis(50)),
            running: Semaphore::new(self.concurrency),
            parked: Semaphore::new(self.parked.min(most_pending / 2)),
            backoff: self.backoff,
            pull_for,
            give_up_after: [at_server, self.give_up_after].into_iter().flatten().min(),
            last_at_server: at_server,
            store_away: AtomicBool::new(false),
            tally: Arc::new(Tally::default()),
        };
        Ok(NatsListener {
            desk: Arc::new(desk),
            consumer: self.consumer,
            batch,
            pull_for,
            drain: self.drain,
        })
    }
}
