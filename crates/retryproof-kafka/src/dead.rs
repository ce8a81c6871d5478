// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dead letters: the message as it was, with headers that say why it lies there, delivered before its offset moves on.

use rdkafka::Message;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use retryproof_core::listener::Reason;
use retryproof_core::{Error, Result};

use crate::delivery::Delivery;

/// Sends dead letters to one topic.
#[derive(Clone)]
pub(crate) struct Grave {
    pub(crate) producer: FutureProducer,
    pub(crate) topic: String,
}

impl Grave {
    /// Until all replicas that have to have the letter do, or it failed. librdkafka repeats what it can by itself, for `message.timeout.ms`.
    pub(crate) async fn bury(&self, delivery: &Delivery, why: Reason) -> Result<()> {
        let message = delivery.message();
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.topic).headers(headers(delivery, why));
        record.payload = message.payload();
        record.key = message.key();
        match self.producer.send(record, Timeout::Never).await {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(not_delivered(error)),
        }
    }
}

fn not_delivered(error: KafkaError) -> Error {
    Error::unavailable("the dead letter was not delivered").because(error)
}

fn headers(delivery: &Delivery, why: Reason) -> OwnedHeaders {
    let message = delivery.message();
    let own = [
        ("retryproof-why", why.as_str().to_owned()),
        ("retryproof-topic", message.topic().to_owned()),
        ("retryproof-partition", message.partition().to_string()),
        ("retryproof-offset", message.offset().to_string()),
    ];
    let kept = message.headers().cloned().unwrap_or_default();
    own.iter().fold(kept, |headers, (key, value)| headers.insert(Header { key, value: Some(value.as_str()) }))
}
