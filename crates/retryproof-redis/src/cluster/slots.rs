// SPDX-License-Identifier: MIT OR Apache-2.0
//! The slot of a key, and the nodes of each range of slots, as a node of the cluster reports them.

use crc::{CRC_16_XMODEM, Crc};
use redis::Value;

use crate::config::Address;

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// Returns the slot of a key, or of a channel that has the key's name.
pub(crate) fn slot(key: &[u8]) -> u16 {
    CRC.checksum(hash_tag(key)) % SLOTS
}

/// Returns the part of the key that selects the slot: the text between the first `{` and the next
/// `}`, or the whole key if there is no such text.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|&byte| byte == b'}') {
        Some(length @ 1..) => &rest[..length],
        _ => key,
    }
}

/// Slots that the same nodes serve.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) primary: Address,
    pub(crate) replicas: Vec<Address>,
}

impl SlotRange {
    pub(crate) fn slots(&self) -> usize {
        usize::from(self.last - self.first) + 1
    }
}

/// Decodes the answer of the node at `asked` to CLUSTER SLOTS; `None` if the answer has another
/// form. A range is left out if the node does not report the address of the range's primary.
pub(crate) fn ranges(answer: &Value, asked: &Address) -> Option<Vec<SlotRange>> {
    let Value::Array(answer) = answer else { return None };
    let mut ranges = Vec::new();
    for range in answer {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = &range[..] else { return None };
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        if first > last || last >= SLOTS {
            return None;
        }
        let (primary, replicas) = nodes.split_first()?;
        let Some(primary) = node(primary, asked)? else { continue };
        let replicas = replicas.iter().filter_map(|replica| node(replica, asked).flatten());
        ranges.push(SlotRange { first, last, primary, replicas: replicas.collect() });
    }
    Some(ranges)
}

/// Decodes a node in the answer: the host, the port, and fields that the store does not use.
/// Without a host, the node is reachable at the host that was asked. `Some(None)` is a node whose
/// host the cluster does not know.
#[expect(clippy::option_option, reason = "an answer of another form is not an unknown host")]
fn node(node: &Value, asked: &Address) -> Option<Option<Address>> {
    let Value::Array(node) = node else { return None };
    let [host, Value::Int(port), ..] = &node[..] else { return None };
    let host = match host {
        Value::Nil => "",
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        _ => return None,
    };
    let port = u16::try_from(*port).ok()?;
    Some((host != "?").then(|| Address { host: host_or(host, asked), port }))
}

/// Decodes the address in a redirection (`SLOT HOST:PORT`) by the node at `asked`.
pub(crate) fn redirected(details: &str, asked: &Address) -> Option<Address> {
    let (_, at) = details.split_once(' ')?;
    let (host, port) = at.trim_end().rsplit_once(':')?;
    let port = port.parse().ok()?;
    (host != "?").then(|| Address { host: host_or(host, asked), port })
}

fn host_or(host: &str, asked: &Address) -> String {
    if host.is_empty() { asked.host.clone() } else { host.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn entry(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])])
    }

    fn range(first: i64, last: i64, nodes: Vec<Value>) -> Value {
        let mut range = vec![Value::Int(first), Value::Int(last)];
        range.extend(nodes);
        Value::Array(range)
    }

    /// The slots are those that `CLUSTER KEYSLOT` of Redis 7.0 returns.
    #[test]
    fn sto_8_a_key_has_the_slot_that_the_server_computes() {
        for (key, expected) in [
            (&b"foo"[..], 12_182),
            (b"{}foo", 9_500),
            (b"foo{", 7_673),
            (b"foo{}{bar}", 8_363),
            (b"retryproof:{3:pay:k 1}", 10_889),
            (b"retryproof:{3:pay:a}b}", slot(b"3:pay:a")),
            (b"foo{{bar}}zap", slot(b"{bar")),
            (b"foo{bar}{zap}", slot(b"bar")),
        ] {
            assert_eq!(slot(key), expected, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn sto_8_the_nodes_of_each_slot_are_read_strictly() {
        let asked = at("seed", 1);
        let answer = Value::Array(vec![
            range(0, 5_460, vec![entry(text("10.0.0.1"), 7_000), entry(text("10.0.0.2"), 7_001)]),
            range(5_461, 5_461, vec![entry(Value::Nil, 7_002), entry(text("?"), 7_003)]),
            range(5_462, 9_999, vec![entry(text("?"), 7_004)]),
            range(10_000, 16_383, vec![entry(text(""), 7_005)]),
        ]);
        let of = |first, last, primary, replicas| SlotRange { first, last, primary, replicas };
        let expected = vec![
            of(0, 5_460, at("10.0.0.1", 7_000), vec![at("10.0.0.2", 7_001)]),
            of(5_461, 5_461, at("seed", 7_002), vec![]),
            of(10_000, 16_383, at("seed", 7_005), vec![]),
        ];
        assert_eq!(ranges(&answer, &asked), Some(expected));
        for bad in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16_384, vec![entry(text("h"), 1)])]),
            Value::Array(vec![range(2, 1, vec![entry(text("h"), 1)])]),
            Value::Array(vec![range(-1, 1, vec![entry(text("h"), 1)])]),
            Value::Array(vec![range(0, 1, vec![])]),
            Value::Array(vec![range(0, 1, vec![entry(text("h"), 70_000)])]),
            Value::Array(vec![range(0, 1, vec![entry(Value::Int(1), 1)])]),
        ] {
            assert_eq!(ranges(&bad, &asked), None, "{bad:?}");
        }
    }

    #[test]
    fn sto_8_a_redirection_names_a_node() {
        let asked = at("seed", 1);
        for (details, expected) in [
            ("3999 127.0.0.1:6381", Some(at("127.0.0.1", 6381))),
            ("3999 ::1:6381", Some(at("::1", 6381))),
            ("3999 node.internal:6381", Some(at("node.internal", 6381))),
            ("3999 :6381", Some(at("seed", 6381))),
            ("3999 ?:6381", None),
            ("3999 127.0.0.1", None),
            ("3999", None),
            ("", None),
        ] {
            assert_eq!(redirected(details, &asked), expected, "{details}");
        }
    }
}
