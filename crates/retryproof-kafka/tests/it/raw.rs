// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kafka's protocol by hand, for a message that rdkafka cannot publish: a header name that is not
//! UTF-8.

use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;

use crate::support::{PATIENCE, TOPIC};

/// `Produce`, version 7: a batch of one record, with one header and a body `{}`, for partition 0.
pub(crate) fn produce(broker: &str, header: &[u8]) -> Result<()> {
    let batch = batch(&record(header));
    let mut request = Vec::new();
    request.extend(0_i16.to_be_bytes()); // Produce
    request.extend(7_i16.to_be_bytes());
    request.extend(1_i32.to_be_bytes()); // correlation
    request.extend((-1_i16).to_be_bytes()); // no client id
    request.extend((-1_i16).to_be_bytes()); // no transaction
    request.extend((-1_i16).to_be_bytes()); // acks of all
    request.extend(30_000_i32.to_be_bytes());
    request.extend(1_i32.to_be_bytes()); // topics
    request.extend(short(TOPIC.len()).to_be_bytes());
    request.extend(TOPIC.as_bytes());
    request.extend(1_i32.to_be_bytes()); // partitions
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
    // Correlation, one topic's name, one partition, and then its error.
    match response.get(4 + 4 + 2 + TOPIC.len() + 4 + 4..).and_then(|rest| rest.first_chunk::<2>()) {
        Some([0, 0]) => Ok(()),
        refused => Err(Error::other(format!("{refused:?}"))),
    }
}

/// The second version of records; see the protocol's page on message formats.
fn batch(record: &[u8]) -> Vec<u8> {
    let mut after_the_sum = Vec::new();
    after_the_sum.extend(0_i16.to_be_bytes()); // attributes
    after_the_sum.extend(0_i32.to_be_bytes()); // last offset
    after_the_sum.extend([0; 16]); // first and last time stamp
    after_the_sum.extend((-1_i64).to_be_bytes()); // no producer id
    after_the_sum.extend((-1_i16).to_be_bytes());
    after_the_sum.extend((-1_i32).to_be_bytes());
    after_the_sum.extend(1_i32.to_be_bytes()); // records
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
    let mut record = vec![0, 0, 0]; // attributes, time stamp, offset
    record.extend(varint(-1)); // no key
    record.extend(varint(2));
    record.extend(b"{}");
    record.extend(varint(1)); // headers
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
