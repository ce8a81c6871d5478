// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the fields of a response that need special treatment, and removes fields from a map
//! without reordering the others (HTTP-8).

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::protocol::stored::IDEMPOTENT_REPLAYED;

/// The field that marks a replay.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static(IDEMPOTENT_REPLAYED);

/// Which fields of a handler's response need special treatment. One pass over the fields finds all
/// of them, because looking up each name would cost more.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpecialFields {
    pub(crate) replayed: bool,
    pub(crate) connection: bool,
    pub(crate) content_length: bool,
    pub(crate) transfer_encoding: bool,
    /// `Content-Type` names an event stream.
    pub(crate) event_stream: bool,
}

impl SpecialFields {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        for (name, value) in headers {
            if *name == CONTENT_TYPE {
                found.event_stream |= is_event_stream(value);
            } else if *name == CONTENT_LENGTH {
                found.content_length = true;
            } else if *name == CONNECTION {
                found.connection = true;
            } else if *name == TRANSFER_ENCODING {
                found.transfer_encoding = true;
            } else if *name == REPLAYED {
                found.replayed = true;
            }
        }
        found
    }
}

fn is_event_stream(value: &HeaderValue) -> bool {
    const ESSENCE: &[u8] = b"text/event-stream";
    let value = value.as_bytes().trim_ascii_start();
    value.split_at_checked(ESSENCE.len()).is_some_and(|(essence, rest)| {
        essence.eq_ignore_ascii_case(ESSENCE)
            && matches!(rest.trim_ascii_start().first(), None | Some(b';'))
    })
}

/// Removes the replay mark from a handler's fields, because only the guard may set the mark
/// (HTTP-8).
pub(crate) fn strip_replay_mark(headers: &mut HeaderMap) {
    remove_in_order(headers, &REPLAYED);
}

/// Removes a field. Rebuilds the map, because `HeaderMap::remove` would swap the last field into
/// the gap.
pub(crate) fn remove_in_order(headers: &mut HeaderMap, removed: &HeaderName) {
    if !headers.contains_key(removed) {
        return;
    }
    let old = std::mem::replace(headers, HeaderMap::with_capacity(headers.len()));
    let mut last = None;
    for (name, value) in old {
        // For a field with several lines, the iterator yields the name only with the first line.
        let name = name.or_else(|| last.take()).filter(|name| name != removed);
        if let Some(name) = &name {
            headers.append(name.clone(), value);
        }
        last = name;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> SpecialFields {
        let lines = lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        SpecialFields::of(&lines.collect())
    }

    #[test]
    fn http_6_an_event_stream_is_known_by_its_type_without_parameters() {
        for value in
            ["text/event-stream", "Text/Event-Stream ; charset=utf-8", " text/event-stream;"]
        {
            assert!(fields(&[("content-type", value)]).event_stream, "{value:?}");
        }
        for value in
            ["", "text/event", "text/event-streams", "text/event-stream x", "a;text/event-stream"]
        {
            assert!(!fields(&[("content-type", value)]).event_stream, "{value:?}");
        }
    }

    #[test]
    fn http_8_http_9_one_pass_finds_each_field() {
        let found = fields(&[
            ("x-own", "1"),
            ("idempotent-replayed", "true"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("connection", "close"),
        ]);
        assert!(found.replayed && found.transfer_encoding && found.content_length);
        assert!(found.connection && !found.event_stream);
        let none = fields(&[("x-own", "1")]);
        assert!(!(none.replayed || none.transfer_encoding || none.content_length));
    }
}
