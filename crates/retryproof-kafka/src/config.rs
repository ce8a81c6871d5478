// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KafkaListenerBuilder`]: the settings of a listener.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::message::OwnedMessage;
use retryproof_core::listener::Backoff;
use retryproof_core::{IntoScope, Result, Scope};

use crate::delivery::{KeyOf, header};

/// Prefixes of the client settings that the producer of the dead letters takes as well.
const CONNECTION_SETTINGS: [&str; 9] = [
    "bootstrap.",
    "metadata.",
    "security.",
    "ssl.",
    "sasl.",
    "enable.ssl",
    "socket.",
    "broker.",
    "client.",
];

/// The settings of a [`KafkaListener`](crate::KafkaListener); made by
/// [`KafkaListener::builder`](crate::KafkaListener::builder).
#[must_use = "a builder does nothing until `build`"]
pub struct KafkaListenerBuilder {
    pub(crate) client: ClientConfig,
    pub(crate) topics: Vec<String>,
    pub(crate) scope: Result<Scope>,
    pub(crate) key_of: Option<Arc<KeyOf>>,
    pub(crate) dead_letters: Option<String>,
    pub(crate) partition_prefetch: usize,
    pub(crate) partition_concurrency: usize,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) drain_timeout: Duration,
}

// Not derived: the client's settings may hold a password (ID-4).
impl fmt::Debug for KafkaListenerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaListenerBuilder")
            .field("topics", &self.topics)
            .field("dead_letters", &self.dead_letters)
            .finish_non_exhaustive()
    }
}

impl KafkaListenerBuilder {
    pub(crate) fn new(client: ClientConfig, topics: &[&str], scope: impl IntoScope) -> Self {
        Self {
            client,
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            scope: scope.into_scope(),
            key_of: None,
            dead_letters: None,
            partition_prefetch: 100,
            partition_concurrency: 1,
            max_attempts: 5,
            backoff: Backoff::default(),
            drain_timeout: Duration::from_secs(30),
        }
    }

    /// Takes the key from the header `name`. This or [`key`](Self::key) is required: Kafka's own
    /// key of a message chooses its partition, and names a customer, say, rather than an event.
    pub fn key_header(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.key(move |message| header(message, &name))
    }

    /// Takes the key from elsewhere. If `key_of` returns `None` or panics, the message becomes a
    /// dead letter.
    pub fn key<F>(mut self, key_of: F) -> Self
    where
        F: Fn(&OwnedMessage) -> Option<String> + Send + Sync + 'static,
    {
        self.key_of = Some(Arc::new(key_of));
        self
    }

    /// The topic for messages that cannot be handled or have failed too often (LST-2). Required.
    /// Give it at least the size limit of the topics that are read: a message that is too large for
    /// it is published without its body, and the header `retryproof-body` says so.
    pub fn dead_letters(mut self, topic: impl Into<String>) -> Self {
        self.dead_letters = Some(topic.into());
        self
    }

    /// How often the work on a message is tried, in place, before the message becomes a dead
    /// letter; 5 unless set. The messages behind it in the partition wait.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// The pause between two attempts: 1 s, doubled each time up to 1 min, unless set.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How many messages of one partition are handled at the same time; 1 unless set, which keeps
    /// their order. A higher number gives up the order; the committed offset then stays before the
    /// first message that is not done.
    pub fn partition_concurrency(mut self, messages: usize) -> Self {
        self.partition_concurrency = messages.clamp(1, 10_000);
        self
    }

    /// How many messages of one partition may be read and not answered; 100 unless set. At that
    /// number the client pauses the partition.
    pub fn partition_prefetch(mut self, messages: usize) -> Self {
        self.partition_prefetch = messages.clamp(1, 100_000);
        self
    }

    /// How long a stop waits for running handlers and for dead letters being published; 30 s unless
    /// set. The client does not poll meanwhile, so keep it below `max.poll.interval.ms` (5 min).
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }
}

/// The settings of the producer: those of the consumer's connection, and its own.
pub(crate) fn producer_settings(client: &ClientConfig) -> ClientConfig {
    let mut producer = ClientConfig::new();
    for (name, value) in client.config_map() {
        if CONNECTION_SETTINGS.iter().any(|prefix| name.starts_with(prefix)) {
            producer.set(name, value);
        }
    }
    // A dead letter is as large as its message. The broker decides what is too large; without
    // batches, its decision concerns one letter only.
    producer.set("message.max.bytes", "1000000000").set("batch.num.messages", "1");
    producer.set("acks", "all").set("message.timeout.ms", "10000");
    producer
}
