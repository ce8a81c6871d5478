// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of brokers: their keys, headers and bodies (LST-1, LST-2).

use std::sync::{Arc, LazyLock};

use lapin::BasicProperties;
use lapin::message::Delivery as BrokerDelivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use retryproof_core::listener::{
    MessageCall, MessageOptions, MessageSettings, Poison, Verdict, body_fingerprint,
};
use retryproof_core::{ErrorKind, Key, Scope};

use super::{about, kind, text};
use crate::product::rabbitmq::delivery::{Delivery, FAILURES, Message, OUTAGES};

static SETTINGS: LazyLock<Arc<MessageSettings>> = LazyLock::new(|| {
    let scope = Scope::new("orders").expect("the scope should be valid");
    let settings = MessageSettings::new(scope, MessageOptions::default());
    Arc::new(settings.expect("the settings should be valid"))
});

/// Checks a message. The first line of the input is the key, the rest is the body.
pub(super) fn message(input: &[u8]) -> u64 {
    let (key, body) = halves(input);
    let key = text(key).into_owned();
    let call = MessageCall::new(Arc::clone(&SETTINGS), || Some(key.clone()));
    check(&call, &key, body)
}

fn halves(input: &[u8]) -> (&[u8], &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    (&input[..end], input.get(end + 1..).unwrap_or_default())
}

fn check(call: &MessageCall, key: &str, body: &[u8]) -> u64 {
    match (call.context(body), Key::new(key)) {
        (Ok(context), Ok(valid)) => {
            assert_eq!(call.key().map(Key::expose), Ok(valid.expose()));
            assert_eq!(context.fingerprint(), Some(&body_fingerprint(body)));
        }
        (Err(poison), Err(error)) => {
            assert_eq!((poison, error.kind()), (Poison::BadKey, ErrorKind::Invalid));
        }
        (context, valid) => panic!("{context:?}, {valid:?}"),
    }
    let shown = format!("{call:?}");
    assert!(key.len() < 24 || !shown.contains(key), "a key is shown: {shown}");
    kind((call.key().is_ok(), about(key.len()), key.is_ascii()))
}

/// Checks a RabbitMQ message. The first line of the input is the key. The second line contains the
/// values of headers, in chunks of 9 bytes. The rest is the body.
pub(super) fn rabbitmq(input: &[u8]) -> u64 {
    let (key, rest) = halves(input);
    let (values, body) = halves(rest);
    let mut headers = FieldTable::default();
    for (number, part) in values.chunks(9).enumerate() {
        let name = match number {
            0 => FAILURES,
            1 => OUTAGES,
            _ => "x",
        };
        headers.insert(name.into(), value(part));
    }
    let mut properties = BasicProperties::default().with_headers(headers);
    // In AMQP, the length of a message id is one byte, so the driver cannot return an id of more
    // than 255 bytes.
    let key = text(key);
    let id = key.chars().scan(0, |length, letter| {
        *length += letter.len_utf8();
        (*length <= 255).then_some(letter)
    });
    let id: String = id.collect();
    properties = properties.with_message_id(ShortString::from(id.clone()));
    let mut broker = BrokerDelivery::mock(1, "orders".into(), "paid".into(), false, body.to_vec());
    broker.properties = properties;
    let message = Message::new(broker);
    let key_of = |message: &Message| message.message_id().map(str::to_owned);
    let delivery = Delivery::new(message, Arc::clone(&SETTINGS), &key_of, None);
    let failed = Verdict::failed();
    let counts = delivery.counts_after(&failed);
    assert!(counts.failures >= delivery.failures());
    assert_eq!(counts.outages, 0);
    assert_eq!(delivery.payload(), body);
    let shown = format!("{delivery:?}");
    assert!(shown.len() < 400, "{shown}");
    check(delivery.call(), &id, body)
}

fn value(part: &[u8]) -> AMQPValue {
    let (kind, rest) = part.split_first().unwrap_or((&0, &[]));
    let mut number = [0; 8];
    number[..rest.len()].copy_from_slice(rest);
    let number = i64::from_le_bytes(number);
    #[expect(clippy::cast_possible_truncation, reason = "any value will do")]
    #[expect(clippy::cast_sign_loss, reason = "any value will do")]
    match kind % 8 {
        0 => AMQPValue::LongString(rest.to_vec().into()),
        1 => AMQPValue::LongLongInt(number),
        2 => AMQPValue::LongUInt(number as u32),
        3 => AMQPValue::ShortShortInt(number as i8),
        4 => AMQPValue::Boolean(number > 0),
        5 => AMQPValue::Double(number as f64),
        6 => AMQPValue::Timestamp(number as u64),
        _ => AMQPValue::Void,
    }
}
