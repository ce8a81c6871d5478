// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removes fields from a map without reordering the others (HTTP-8).

use http::{HeaderMap, HeaderName};

use crate::protocol::stored::IDEMPOTENT_REPLAYED;

/// The field that marks a replay.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static(IDEMPOTENT_REPLAYED);

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
