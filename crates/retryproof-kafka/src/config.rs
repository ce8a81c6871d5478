// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KafkaListenerBuilder`]: the settings of a listener.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::message::OwnedMessage;
use retryproof_core::listener::{AttemptRules, Backoff, MessageOptions, MessageSettings};
use retryproof_core::{IdentitySecret, IntoScope, Result, Scope};

use crate::delivery::{KeyOf, header};
use crate::error::invalid_setting;

/// Prefixes of the client settings that the dead-letter producer shares with the consumer.
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

/// The settings of a [`KafkaListener`](crate::KafkaListener), created by
/// [`KafkaListener::builder`](crate::KafkaListener::builder).
#[must_use = "a builder does nothing until `build` is called"]
pub struct KafkaListenerBuilder {
    client: ClientConfig,
    topics: Vec<String>,
    scope: Result<Scope>,
    key_of: Option<Arc<KeyOf>>,
    subject_of: Option<Arc<KeyOf>>,
    dead_letters: Option<String>,
    messages: MessageOptions,
    partition_prefetch: usize,
    partition_concurrency: usize,
    max_attempts: u32,
    backoff: Backoff,
    drain_timeout: Duration,
}

/// The checked settings.
pub(crate) struct Settings {
    pub(crate) client: ClientConfig,
    pub(crate) topics: Vec<String>,
    pub(crate) dead_letters: String,
    pub(crate) key_of: Arc<KeyOf>,
    pub(crate) subject_of: Option<Arc<KeyOf>>,
    pub(crate) messages: Arc<MessageSettings>,
    pub(crate) rules: AttemptRules,
    pub(crate) partition_prefetch: usize,
    pub(crate) partition_concurrency: usize,
    pub(crate) drain_timeout: Duration,
}

// `Debug` is not derived, because the client's settings can contain a password (ID-4).
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
            subject_of: None,
            dead_letters: None,
            messages: MessageOptions::default(),
            partition_prefetch: 100,
            partition_concurrency: 1,
            max_attempts: 5,
            backoff: Backoff::default(),
            drain_timeout: Duration::from_secs(30),
        }
    }

    /// Takes the key from the header `name`. This method or [`key`](Self::key) is required. The
    /// listener never uses the message's Kafka key implicitly, because a Kafka key selects the
    /// partition, and often identifies a customer rather than an event.
    pub fn key_header(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.key(move |message| header(message, &name))
    }

    /// Computes the key with `key_of`. If `key_of` returns `None` or panics, the message becomes a
    /// dead letter.
    pub fn key<F>(mut self, key_of: F) -> Self
    where
        F: Fn(&OwnedMessage) -> Option<String> + Send + Sync + 'static,
    {
        self.key_of = Some(Arc::new(key_of));
        self
    }

    /// Sets the topic for dead letters, which are messages that cannot be handled or have failed
    /// too often (LST-2). This setting is required. The topic should accept messages as large as
    /// those in the listener's topics. A letter that is too large for the topic is published
    /// without its body and, if necessary, without its headers and key. Its header
    /// `retryproof-omitted` names the missing parts.
    pub fn dead_letters(mut self, topic: impl Into<String>) -> Self {
        self.dead_letters = Some(topic.into());
        self
    }

    /// Finds the data subject of a message: the person or tenant whom the result is about. If the
    /// handler's store has sealed results, the result is sealed with the key of this subject
    /// (SEAL-3). If `subject_of` returns `None`, as by default, the results of the scope share a
    /// key. If `subject_of` panics, the message becomes a dead letter.
    pub fn data_subject<F>(mut self, subject_of: F) -> Self
    where
        F: Fn(&OwnedMessage) -> Option<String> + Send + Sync + 'static,
    {
        self.subject_of = Some(Arc::new(subject_of));
        self
    }

    /// Treats every message with a known key as a redelivery, even if its body is different. By
    /// default, such a message is rejected (FP-1) and becomes a dead letter.
    pub fn any_body(mut self) -> Self {
        self.messages.any_body = true;
        self
    }

    /// Sets how long a redelivery is recognised; see
    /// [`ContextBuilder::ttl`](retryproof_core::ContextBuilder::ttl). The ttl should be longer than
    /// the time that a message can stay in its topic, plus the time until its dead letter is sent
    /// again.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.messages.ttl = Some(ttl);
        self
    }

    /// Sets how long the messages of a killed listener stay in flight before they can run again;
    /// see [`ContextBuilder::lease`](retryproof_core::ContextBuilder::lease).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.messages.lease = Some(lease);
        self
    }

    /// Sets how long a redelivery waits while another delivery of its message is in flight. The
    /// default is zero. The listener then does not wait, but tries the redelivery again after a
    /// pause (LST-1).
    pub fn wait_timeout(mut self, timeout: Duration) -> Self {
        self.messages.wait_timeout = timeout;
        self
    }

    /// Sets the identity secret of the store that the handler uses. The listener's logs then show
    /// the same digests as the store's logs. Without this setting, they show digits of the key's
    /// SHA-256 (ID-5).
    pub fn identity_secret(mut self, secret: IdentitySecret) -> Self {
        self.messages.identity_secret = Some(secret);
        self
    }

    /// Sets how many times the work on a message can be tried before the message becomes a dead
    /// letter. The default is 5. A message counts towards
    /// [`partition_concurrency`](Self::partition_concurrency) until it is answered. With the
    /// default concurrency of 1, all later messages of the partition wait for this message.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Sets the pause between two attempts. By default, the first pause is 1 s, and each further
    /// pause is twice as long, up to 1 min.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets how many messages of one partition are handled at the same time. The default of 1
    /// preserves their order, and a higher number does not. In either case, the committed offset
    /// stops at the first message that is not done.
    pub fn partition_concurrency(mut self, messages: usize) -> Self {
        self.partition_concurrency = messages.clamp(1, 10_000);
        self
    }

    /// Sets how many unfinished messages of one partition the listener can hold. The default is
    /// 100. At this number, the listener pauses the partition.
    pub fn partition_prefetch(mut self, messages: usize) -> Self {
        self.partition_prefetch = messages.clamp(1, 100_000);
        self
    }

    /// Sets how long a stop waits for running handlers and for dead letters that are being
    /// published. The default is 30 s. The client does not poll during a stop, so keep this timeout
    /// below `max.poll.interval.ms` (5 min).
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Checks the settings.
    pub(crate) fn check(self) -> Result<Settings> {
        let messages = MessageSettings::new(self.scope?, self.messages)?;
        let key_of = self.key_of.ok_or_else(|| {
            invalid_setting("no key is set: call `.key_header(\"event-id\")` or `.key(..)`")
        })?;
        let dead_letters = self.dead_letters.ok_or_else(|| {
            invalid_setting("no dead-letter topic is set: call `.dead_letters(\"orders.dead\")`")
        })?;
        // Check for a runtime here, because rdkafka panics without one.
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(invalid_setting("`build` must be called inside a tokio runtime"));
        }
        if self.topics.is_empty() {
            return Err(invalid_setting("the list of topics is empty"));
        }
        // librdkafka treats a name that begins with `^` as a regular expression.
        if let Some(pattern) = self.topics.iter().find(|topic| topic.starts_with('^')) {
            return Err(invalid_setting(
                "a topic is a pattern, which could also match the dead-letter topic; list the \
                 topics by name",
            )
            .with("topic", pattern));
        }
        if self.topics.contains(&dead_letters) {
            return Err(invalid_setting(
                "the dead-letter topic is also read by the listener; use another topic",
            ));
        }
        if self.client.get("group.id").is_none_or(str::is_empty) {
            return Err(invalid_setting("the client settings have no `group.id`; set one"));
        }
        let rules = AttemptRules::new(self.backoff).in_flight(self.backoff.after(1));
        Ok(Settings {
            client: consumer_settings(self.client),
            topics: self.topics,
            dead_letters,
            key_of,
            subject_of: self.subject_of,
            messages: Arc::new(messages),
            rules: rules.max_attempts(self.max_attempts.into()),
            partition_prefetch: self.partition_prefetch,
            partition_concurrency: self.partition_concurrency,
            drain_timeout: self.drain_timeout,
        })
    }
}

/// Returns the consumer's settings: the application's settings and those that the listener depends
/// on.
fn consumer_settings(mut client: ClientConfig) -> ClientConfig {
    client.set("enable.auto.offset.store", "false").set("enable.auto.commit", "true");
    if client.get("auto.commit.interval.ms").is_none() {
        client.set("auto.commit.interval.ms", "1000");
    }
    // With librdkafka's default, `largest`, the group would skip the messages that were published
    // before its first commit.
    if client.get("auto.offset.reset").is_none() {
        client.set("auto.offset.reset", "earliest");
    }
    client
}

/// Returns the producer's settings: the consumer's connection settings and those that make delivery
/// reliable.
pub(crate) fn producer_settings(client: &ClientConfig) -> ClientConfig {
    let mut producer = ClientConfig::new();
    for (name, value) in client.config_map() {
        if CONNECTION_SETTINGS.iter().any(|prefix| name.starts_with(prefix)) {
            producer.set(name, value);
        }
    }
    // A dead letter can be as large as its message, so let only the broker limit the size. Send
    // each letter in a separate batch, so that the broker rejects only the letter that is too
    // large.
    producer.set("message.max.bytes", "1000000000").set("batch.num.messages", "1");
    producer.set("acks", "all").set("message.timeout.ms", "10000");
    producer
}
