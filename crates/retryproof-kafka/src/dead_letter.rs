// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`DeadLetterTopic`]: publishes dead letters. Each letter contains the message, and has headers
//! for the reason and the message's position. The committed offset moves past a message only after
//! its letter is delivered.

use std::time::Duration;

use rdkafka::Message;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::util::Timeout;
use retryproof_core::Result;
use retryproof_core::listener::dead_letter::{LetterContent, OMITTED, REASON, TooLarge};
use retryproof_core::listener::{Backoff, Reason};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::delivery::Delivery;
use crate::error::{dead_letter_not_delivered, invalid_setting, is_too_large, is_topic_missing};
use crate::receive::assignment::PartitionStop;

/// How long one request for the topic's metadata waits for a broker.
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two metadata requests.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How many times the brokers must report the topic as missing before the listener gives up.
/// Brokers that create topics on demand report a new topic as missing at first.
const MAX_MISSES: u32 = 5;

/// The topic to which dead letters are published.
#[derive(Clone)]
pub(crate) struct DeadLetterTopic {
    pub(crate) producer: FutureProducer,
    pub(crate) topic: String,
}

impl DeadLetterTopic {
    /// Waits until the brokers report that the topic exists. While no broker answers, keeps trying.
    /// Fails if the brokers report the topic as missing [`MAX_MISSES`] times, because a listener
    /// cannot work without a dead-letter topic.
    pub(crate) async fn find(&self) -> Result<()> {
        let mut misses = 0;
        loop {
            let topic = self.clone();
            let error = match spawn_blocking(move || topic.fetch_metadata()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => KafkaError::Canceled,
            };
            misses += u32::from(is_topic_missing(&error));
            if misses >= MAX_MISSES {
                let message = "the dead-letter topic does not exist, or this user is not allowed \
                     to see it";
                return Err(invalid_setting(message)
                    .with("topic", self.topic.clone())
                    .because(error));
            }
            tracing::warn!(topic = self.topic, %error, "dead-letter topic not found; no messages \
                 are read until it is found");
            sleep(RETRY_DELAY).await;
        }
    }

    fn fetch_metadata(&self) -> std::result::Result<(), KafkaError> {
        let metadata =
            self.producer.client().fetch_metadata(Some(&self.topic), METADATA_TIMEOUT)?;
        match metadata.topics().first().map(|topic| topic.error()) {
            Some(None) => Ok(()),
            Some(Some(error)) => Err(KafkaError::MetadataFetch(error.into())),
            None => Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition)),
        }
    }

    /// Publishes the letter, and retries until the letter is delivered or a stop is requested.
    /// Returns whether the letter was delivered.
    pub(crate) async fn publish_until(
        &self,
        stop: &mut PartitionStop,
        delivery: &Delivery,
        reason: Reason,
        backoff: Backoff,
    ) -> bool {
        let mut failures = 0;
        while let Err(error) = self.publish(delivery, reason).await {
            failures += 1;
            let pause = backoff.after(failures);
            tracing::error!(delivery = ?delivery, %error, ?pause, "dead letter not delivered; its \
                 message's offset is not committed until a retry succeeds");
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.requested() => return false,
            }
        }
        true
    }

    /// Publishes the letter and waits until all in-sync replicas have it. librdkafka retries
    /// transient failures for `message.timeout.ms`. If the letter is too large for its topic, sends
    /// it again with less content. Otherwise, the message would block its partition forever.
    async fn publish(&self, delivery: &Delivery, reason: Reason) -> Result<()> {
        let mut content = LetterContent::WHOLE;
        loop {
            let Err(error) = self.send(delivery, reason, content).await else { return Ok(()) };
            let reduced = content.reduced(TooLarge::Letter).filter(|_| is_too_large(&error));
            content = reduced.ok_or_else(|| dead_letter_not_delivered(error))?;
            tracing::error!(
                ?delivery,
                "dead letter too large for its topic; sending it with less content"
            );
        }
    }

    /// Sends the letter. If `content` omits the headers, the letter has no Kafka key either.
    async fn send(
        &self,
        delivery: &Delivery,
        reason: Reason,
        content: LetterContent,
    ) -> std::result::Result<(), KafkaError> {
        let message = delivery.message();
        let headers = headers(delivery, reason, content);
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.topic).headers(headers);
        // Send an empty body instead of no body. In a compacted topic, a message without a body
        // would delete the earlier messages with the same key.
        record.payload = if content.body { message.payload() } else { Some(&[]) };
        record.key = message.key().filter(|_| content.headers);
        self.producer.send(record, Timeout::Never).await.map(drop).map_err(|(error, _)| error)
    }
}

fn headers(delivery: &Delivery, reason: Reason, content: LetterContent) -> OwnedHeaders {
    let message = delivery.message();
    let original = message.headers().filter(|_| content.headers).cloned().unwrap_or_default();
    let added = [
        (REASON, Some(reason.as_str().to_owned())),
        ("retryproof-topic", Some(message.topic().to_owned())),
        ("retryproof-partition", Some(message.partition().to_string())),
        ("retryproof-offset", Some(message.offset().to_string())),
        (OMITTED, content.omitted().map(str::to_owned)),
    ];
    added.iter().filter(|(_, value)| value.is_some()).fold(original, |headers, (key, value)| {
        headers.insert(Header { key, value: value.as_deref() })
    })
}
