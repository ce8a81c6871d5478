// SPDX-License-Identifier: MIT OR Apache-2.0
//! Acknowledges a message to Kafka by storing the offset that the group commits next (LST-2).

use std::sync::{Mutex, PoisonError};

use rdkafka::Message;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::delivery::Delivery;
use crate::receive::assignment::GroupConsumer;
use offsets::{OffsetTracker, OpenOffset};

pub(crate) mod offsets;

/// Marks the message as done, and stores the partition's offset if the offset has moved. librdkafka
/// commits stored offsets every `auto.commit.interval.ms` and before the partition is revoked.
pub(crate) fn store_offset(
    consumer: &GroupConsumer,
    delivery: &Delivery,
    open: OpenOffset,
    tracker: &Mutex<OffsetTracker>,
) {
    let message = delivery.message();
    // Hold the lock while the offset is stored. Otherwise, a lower offset could be stored after a
    // higher one.
    let mut tracker = tracker.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(offset) = tracker.done(open) else { return };
    let stored = || -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(message.topic(), message.partition(), Offset::Offset(offset))?;
        consumer.store_offsets(&list)
    };
    if let Err(error) = stored() {
        tracing::debug!(delivery = ?delivery, %error, "offset not stored, probably because the \
                                                       partition was revoked");
    }
}
