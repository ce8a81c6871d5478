// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KafkaListenerBuilder`]: the settings of a listener.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::{ClientConfig, FromClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::StreamConsumer;
use rdkafka::error::KafkaError;
use rdkafka::message::OwnedMessage;
use rdkafka::producer::FutureProducer;
use retryproof_core::listener::{Backoff, Tally};
use retryproof_core::{Error, ErrorKind, IntoScope, Result, Scope};

use crate::KafkaListener;
use crate::dead_letter::Grave;
use crate::delivery::{KeyOf, header};
use crate::handle::Desk;
use crate::receive::assignment::Member;

/// What a consumer's settings and a producer's have in common, by the beginning of their names.
const OF_THE_CONNECTION: [&str; 9] = [
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

/// The settings of a [`KafkaListener`]; made by [`KafkaListener::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct KafkaListenerBuilder {
    client: ClientConfig,
    topics: Vec<String>,
    scope: Result<Scope>,
    key_of: Option<Arc<KeyOf>>,
    dead_letters: Option<String>,
    ahead: usize,
    side_by_side: usize,
    attempts: u32,
    backoff: Backoff,
    drain: Duration,
}

// By hand: the client's settings may hold a password.
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
            ahead: 100,
            side_by_side: 1,
            attempts: 5,
            backoff: Backoff::default(),
            drain: Duration::from_secs(30),
        }
    }

    /// Takes the key from this header. This or [`key`](Self::key) is required: Kafka's own key of a
    /// message says which partition it belongs to, such as a customer, and not which event it is.
    pub fn key_header(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.key(move |message| header(message, &name))
    }

    /// Takes the key from elsewhere. `None` makes the message a dead letter, and so does a panic.
    pub fn key<F>(mut self, key_of: F) -> Self
    where
        F: Fn(&OwnedMessage) -> Option<String> + Send + Sync + 'static,
    {
        self.key_of = Some(Arc::new(key_of));
        self
    }

    /// The topic for messages that cannot be handled, and for those that have failed too often
    /// (LST-2). Required. It should take what the topics that are listened to take: a message that
    /// is too large for it goes there without its body, which a header `retryproof-body` says.
    pub fn dead_letters(mut self, topic: impl Into<String>) -> Self {
        self.dead_letters = Some(topic.into());
        self
    }

    /// How often the work on a message is tried, in place, before it becomes a dead letter; 5
    /// unless set. The messages behind it wait.
    pub fn attempts(mut self, runs: u32) -> Self {
        self.attempts = runs.max(1);
        self
    }

    /// Between two attempts: 1 s, doubled with each up to 1 min, unless set.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How many messages of one partition are handled side by side; 1 unless set, which keeps their
    /// order. With more, the order is not kept, and the committed offset stays before the first
    /// message that is not done.
    pub fn side_by_side(mut self, messages: usize) -> Self {
        self.side_by_side = messages.clamp(1, 10_000);
        self
    }

    /// How many messages of one partition are read and not answered before the client stops to read
    /// it; 100 unless set.
    pub fn ahead(mut self, messages: usize) -> Self {
        self.ahead = messages.clamp(1, 100_000);
        self
    }

    /// How long a stop waits for handlers at work, and for dead letters on their way; 30 s unless
    /// set. The client is not asked for messages meanwhile, so keep it below `max.poll.interval.ms`
    /// (5 min).
    pub fn drain(mut self, at_most: Duration) -> Self {
        self.drain = at_most;
        self
    }

    /// Makes the clients: a consumer, and a producer for the dead letters. Connects in the
    /// background.
    ///
    /// Of the settings given, `enable.auto.offset.store` and `enable.auto.commit` are the
    /// listener's own: offsets are stored when messages are answered, and committed every
    /// `auto.commit.interval.ms` (1 s unless set), before a partition is given away, and at the
    /// end. `auto.offset.reset` is `earliest` unless set: librdkafka's own default has a group that
    /// is new, or whose offset is gone, skip what lies in the topic, and no message is skipped
    /// unrun (LST-2).
    ///
    /// # Errors
    /// [`ErrorKind::Config`]: no key, no topic for dead letters or one that is listened to, no
    /// topics, no `group.id`, or a setting that librdkafka refuses; no tokio runtime around.
    /// [`ErrorKind::Invalid`] for the scope.
    pub fn build(self) -> Result<KafkaListener> {
        let scope = self.scope?;
        let wrong = |why: &'static str| Error::new(ErrorKind::Config, why);
        let key_of = self.key_of.ok_or_else(|| {
            wrong(
                "a listener has to know which event a message is: `.key_header(\"event-id\")` or `.key(..)`",
            )
        })?;
        let topic = self.dead_letters.ok_or_else(|| {
            wrong("a listener needs a topic for its dead letters: `.dead_letters(\"orders.dead\")`")
        })?;
        // librdkafka's wrapper would panic.
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(wrong("a listener is built inside of a tokio runtime"));
        }
        if self.topics.is_empty() {
            return Err(wrong("there is no topic to listen to"));
        }
        if self.topics.contains(&topic) {
            return Err(wrong(
                "the dead letters go to a topic that is listened to; give them one of their own",
            ));
        }
        if self.client.get("group.id").is_none_or(str::is_empty) {
            return Err(wrong("the client has no `group.id`"));
        }
        let mut client = self.client;
        client.set("enable.auto.offset.store", "false").set("enable.auto.commit", "true");
        if client.get("auto.commit.interval.ms").is_none() {
            client.set("auto.commit.interval.ms", "1000");
        }
        // Left to librdkafka it is `largest`: what was published before the group's first commit
        // would never run.
        if client.get("auto.offset.reset").is_none() {
            client.set("auto.offset.reset", "earliest");
        }
        let consumer: StreamConsumer<Member> =
            StreamConsumer::from_config_and_context(&client, Member::default()).map_err(refused)?;
        let mut sender = ClientConfig::new();
        for (name, value) in client.config_map() {
            if OF_THE_CONNECTION.iter().any(|start| name.starts_with(start)) {
                sender.set(name, value);
            }
        }
        // A letter is as large as its message; what is too large is for the broker to say, and of
        // one letter alone.
        sender.set("message.max.bytes", "1000000000").set("batch.num.messages", "1");
        sender.set("acks", "all").set("message.timeout.ms", "10000");
        let producer = FutureProducer::from_config(&sender).map_err(refused)?;
        let desk = Desk {
            consumer,
            grave: Grave { producer, topic },
            scope,
            key_of,
            backoff: self.backoff,
            attempts: self.attempts,
            side_by_side: self.side_by_side,
            tally: Arc::new(Tally::default()),
        };
        Ok(KafkaListener {
            desk: Arc::new(desk),
            topics: self.topics,
            ahead: self.ahead,
            drain: self.drain,
        })
    }
}

/// The error names the setting, and its value: a password may be one, so it is not passed on.
fn refused(error: KafkaError) -> Error {
    let why = match &error {
        KafkaError::ClientConfig(_, _, name, _) => name.clone(),
        _ => "client".to_owned(),
    };
    Error::new(ErrorKind::Config, "librdkafka refuses a setting of the client").with("setting", why)
}
