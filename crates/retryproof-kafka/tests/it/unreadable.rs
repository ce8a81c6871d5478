// SPDX-License-Identifier: MIT OR Apache-2.0
//! A message that rdkafka cannot read, because the name of a header is not UTF-8. No client would
//! publish such a message, so the request is written by hand in Kafka's protocol.

use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdkafka::Message;
use retryproof_core::listener::{Poison, Reason};

use crate::support::{Mock, PATIENCE, TOPIC, counting, start};

/// Sends the request `Produce`, version 7: a batch of one record, with one header and the body
/// `{}`, for partition 0.
pub(crate) fn produce(broker: &str, header: &[u8]) -> Result<()> {
    let batch = batch(&record(header));
    let mut request = Vec::new();
    request.extend(0_i16.to_be_bytes()); // the request type, Produce
    request.extend(7_i16.to_be_bytes());
    request.extend(1_i32.to_be_bytes()); // the correlation id
    request.extend((-1_i16).to_be_bytes()); // no client id
    request.extend((-1_i16).to_be_bytes()); // no transaction
    request.extend((-1_i16).to_be_bytes()); // acknowledged by all replicas
    request.extend(30_000_i32.to_be_bytes());
    request.extend(1_i32.to_be_bytes()); // the number of topics
    request.extend(short(TOPIC.len()).to_be_bytes());
    request.extend(TOPIC.as_bytes());
    request.extend(1_i32.to_be_bytes()); // the number of partitions
    request.extend(0_i32.to_be_bytes());
    request.extend(long(batch.len()).to_be_bytes());
    request.extend(batch);

    let mut connection = TcpStream::connect(broker)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.write_all(&long(request.len()).to_be_bytes())?;
    connection.write_all(&request)?;
    let mut length = [0; 4];
    connection.read_exact(&mut length)?;
    let mut response = vec![0; usize::try_from(i32::from_be_bytes(length)).map_err(Error::other)?];
    connection.read_exact(&mut response)?;
    // The response contains the correlation id, the name of one topic, one partition, and that
    // partition's error code.
    match response.get(4 + 4 + 2 + TOPIC.len() + 4 + 4..).and_then(|rest| rest.first_chunk::<2>()) {
        Some([0, 0]) => Ok(()),
        refused => Err(Error::other(format!("{refused:?}"))),
    }
}

/// Wraps a record in a batch, in version 2 of Kafka's message format.
fn batch(record: &[u8]) -> Vec<u8> {
    let mut after_the_sum = Vec::new();
    after_the_sum.extend(0_i16.to_be_bytes()); // attributes
    after_the_sum.extend(0_i32.to_be_bytes()); // last offset
    after_the_sum.extend([0; 16]); // the first and the last timestamp
    after_the_sum.extend((-1_i64).to_be_bytes()); // no producer id
    after_the_sum.extend((-1_i16).to_be_bytes());
    after_the_sum.extend((-1_i32).to_be_bytes());
    after_the_sum.extend(1_i32.to_be_bytes()); // the number of records
    after_the_sum.extend(record);
    let mut batch = Vec::new();
    batch.extend(0_i64.to_be_bytes()); // base offset
    batch.extend(long(4 + 1 + 4 + after_the_sum.len()).to_be_bytes());
    batch.extend((-1_i32).to_be_bytes()); // leader epoch
    batch.push(2);
    batch.extend(0_u32.to_be_bytes()); // checksum: the mock cluster and, by default, clients ignore it
    batch.extend(after_the_sum);
    batch
}

fn record(header: &[u8]) -> Vec<u8> {
    let mut record = vec![0, 0, 0]; // attributes, timestamp, offset
    record.extend(varint(-1)); // no key
    record.extend(varint(2));
    record.extend(b"{}");
    record.extend(varint(1)); // the number of headers
    record.extend(varint(i32::from(short(header.len()))));
    record.extend(header);
    record.extend(varint(1));
    record.push(b'x');
    let mut whole = varint(long(record.len()));
    whole.extend(record);
    whole
}

fn varint(number: i32) -> Vec<u8> {
    let mut rest = u32::from_ne_bytes(((number << 1) ^ (number >> 31)).to_ne_bytes());
    let mut bytes = Vec::new();
    while rest > 0x7f {
        bytes.push((rest & 0x7f).to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    bytes.push(rest.to_le_bytes()[0]);
    bytes
}

fn short(length: usize) -> i16 {
    i16::try_from(length).expect("short")
}

fn long(length: usize) -> i32 {
    i32::try_from(length).expect("short")
}

#[tokio::test]
async fn lst_2_a_message_whose_key_panics_is_a_dead_letter_and_ends_nothing() {
    let mock = Mock::new(1);
    let runs = Arc::new(AtomicUsize::new(0));
    mock.publish_named(b"caf\xe9").await; // rdkafka panics when it reads this name
    mock.publish(0, "o-2", "{}").await;
    let running = start(mock.listener().build().expect("built"), counting(&mock, &runs));
    mock.until_committed(0, 2).await;
    running.stop().await;
    assert_eq!((runs.load(Ordering::SeqCst), mock.dead_letter_count().await), (1, 1));

    let listener = mock.listener().key(|message| {
        assert!(message.offset() != 2, "the function of the program panics");
        Some(format!("o-{}", message.offset()))
    });
    mock.publish(0, "any", "{}").await;
    mock.publish(0, "any", "{}").await;
    let listener = listener.build().expect("built");
    let counters = listener.counters();
    let running = start(listener, counting(&mock, &runs));
    mock.until_committed(0, 4).await;
    running.stop().await;
    assert_eq!((runs.load(Ordering::SeqCst), mock.dead_letter_count().await), (2, 2));
    assert_eq!(counters.count_of(Reason::Poison(Poison::BadKey)), 1);
}
