// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dead letters: the message as it was, with headers that say why it lies there, delivered before
//! its offset moves on.

use std::time::Duration;

use rdkafka::Message;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::util::Timeout;
use retryproof_core::listener::Reason;
use retryproof_core::{Error, ErrorKind, Result};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::delivery::Delivery;

/// How long one look for the topic waits for a broker.
const LOOK: Duration = Duration::from_secs(5);
/// Between two of them.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often a topic may be missing before it is said to be: one that brokers make by themselves is
/// missing at first.
const MOST_MISSES: u32 = 5;

/// Sends dead letters to one topic.
#[derive(Clone)]
pub(crate) struct Grave {
    pub(crate) producer: FutureProducer,
    pub(crate) topic: String,
}

/// How much of a message its letter keeps.
#[derive(Debug, Clone, Copy)]
enum Keep {
    Everything,
    /// Without the body.
    Headers,
    /// Without Kafka's own key and the message's headers as well: where it lies, no more.
    Place,
}

impl Grave {
    /// Waits until the topic is found, over outages. A listener that cannot put dead letters
    /// anywhere does not begin.
    pub(crate) async fn find(&self) -> Result<()> {
        let mut misses = 0;
        loop {
            let grave = self.clone();
            let looked = spawn_blocking(move || grave.peek()).await;
            let error = match looked {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => KafkaError::Canceled,
            };
            misses += u32::from(is_missing(&error));
            if misses >= MOST_MISSES {
                let wrong = "the topic of the dead letters is not there, or not for this user";
                return Err(Error::new(ErrorKind::Config, wrong)
                    .with("topic", self.topic.clone())
                    .because(error));
            }
            tracing::warn!(topic = self.topic, %error, "the topic of the dead letters is not \
                 found yet, no message is read before");
            sleep(LOOK_AGAIN).await;
        }
    }

    fn peek(&self) -> std::result::Result<(), KafkaError> {
        let found = self.producer.client().fetch_metadata(Some(&self.topic), LOOK)?;
        match found.topics().first().map(|topic| topic.error()) {
            Some(None) => Ok(()),
            Some(Some(error)) => Err(KafkaError::MetadataFetch(error.into())),
            None => Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition)),
        }
    }

    /// Until all replicas that have to have the letter do, or it failed. librdkafka repeats what it
    /// can by itself, for `message.timeout.ms`. A letter that is too large for its topic keeps
    /// less: held back, it would hold up its partition for ever.
    pub(crate) async fn bury(&self, delivery: &Delivery, why: Reason) -> Result<()> {
        for keep in [Keep::Everything, Keep::Headers, Keep::Place] {
            match self.send(delivery, why, keep).await {
                Ok(()) => return Ok(()),
                Err(error) if is_too_large(&error) => {
                    tracing::error!(
                        ?delivery,
                        "a dead letter is too large for its topic, and is sent without its body"
                    );
                }
                Err(error) => return Err(not_delivered(error)),
            }
        }
        Err(Error::unavailable(
            "the dead letter was not delivered: its topic takes not even its place",
        ))
    }

    async fn send(
        &self,
        delivery: &Delivery,
        why: Reason,
        keep: Keep,
    ) -> std::result::Result<(), KafkaError> {
        let message = delivery.message();
        let mut record =
            FutureRecord::<[u8], [u8]>::to(&self.topic).headers(headers(delivery, why, keep));
        record.payload = match keep {
            Keep::Everything => message.payload(),
            // Empty and not missing: a compacted topic takes a missing one for a deletion.
            Keep::Headers | Keep::Place => Some(&[]),
        };
        record.key = message.key().filter(|_| !matches!(keep, Keep::Place));
        self.producer.send(record, Timeout::Never).await.map(drop).map_err(|(error, _)| error)
    }
}

fn is_missing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::TopicAuthorizationFailed
                | RDKafkaErrorCode::InvalidTopic
        )
    )
}

fn is_too_large(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge)
}

fn not_delivered(error: KafkaError) -> Error {
    Error::unavailable("the dead letter was not delivered").because(error)
}

fn headers(delivery: &Delivery, why: Reason, keep: Keep) -> OwnedHeaders {
    let message = delivery.message();
    let own = [
        ("retryproof-why", why.as_str().to_owned()),
        ("retryproof-topic", message.topic().to_owned()),
        ("retryproof-partition", message.partition().to_string()),
        ("retryproof-offset", message.offset().to_string()),
    ];
    let kept = match keep {
        Keep::Everything | Keep::Headers => message.headers().cloned().unwrap_or_default(),
        Keep::Place => OwnedHeaders::new(),
    };
    let headers = own.iter().fold(kept, |headers, (key, value)| {
        headers.insert(Header { key, value: Some(value.as_str()) })
    });
    match keep {
        Keep::Everything => headers,
        Keep::Headers | Keep::Place => {
            let left_out = format!("left out, {} bytes", delivery.payload().len());
            headers.insert(Header { key: "retryproof-body", value: Some(&left_out) })
        }
    }
}
