// SPDX-License-Identifier: MIT OR Apache-2.0
//! Canonical JSON (FP-3, FP-5).

use serde_json::Value;

use super::{about, kind};
use crate::product::json;

/// A writer of canonical JSON.
pub type Canonical = fn(&[u8]) -> Option<Vec<u8>>;

pub(super) fn run(input: &[u8]) -> u64 {
    let seen = check(input, json::canonical);
    // Pointers that point to nothing remove nothing, and the others remove at most the values that
    // they name.
    let whole = json::canonical(input);
    assert_eq!(json::canonical_without(input, &["/\u{1}/no such member"]), whole);
    let without = json::canonical_without(input, &["/a", "/b/0", "/c~1d/~0"]);
    assert_eq!(without.is_some(), whole.is_some());
    if let (Some(without), Some(whole)) = (&without, &whole) {
        assert!(without.len() <= whole.len());
        assert_eq!(json::canonical(without).as_ref(), Some(without));
    }
    seen
}

/// Checks the properties of a writer.
///
/// # Panics
/// If a property does not hold.
#[must_use]
pub fn check(input: &[u8], canonical: Canonical) -> u64 {
    let read = serde_json::from_slice::<Value>(input);
    let Some(written) = canonical(input) else {
        return kind(read.is_ok());
    };
    let shown = || String::from_utf8_lossy(&written).into_owned();
    if read.as_ref().is_err_and(is_inexact) {
        return kind(true);
    }
    let read = read.unwrap_or_else(|error| panic!("not JSON: {error}: {}", shown()));
    assert_eq!(canonical(&written).as_ref(), Some(&written), "not stable: {}", shown());
    let spaced = [b" \n", input, b"\t\r "].concat();
    assert_eq!(canonical(&spaced).as_ref(), Some(&written), "white space matters: {}", shown());
    let again = serde_json::from_slice::<Value>(&written);
    if again.as_ref().is_err_and(is_inexact) {
        return kind(true);
    }
    let again = again.unwrap_or_else(|error| panic!("wrote no JSON: {error}: {}", shown()));
    assert!(same(&read, &again), "another value: {}", shown());
    // Compare only values without doubles, because serde_json reads some doubles inexactly. It also
    // reads an integer that does not fit into 64 bits as a double.
    if exact(&read) {
        let sorted = serde_json::to_vec(&read).unwrap_or_default();
        if let Some(other) = canonical(&sorted) {
            assert_eq!(other, written, "the order of members or an escape matters: {}", shown());
        }
    }
    kind((about(written.len()), depth(&read), written == input))
}

fn depth(value: &Value) -> u32 {
    match value {
        Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Value::Object(values) => 1 + values.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Returns whether the value has no double, so that `serde_json` has read each number exactly.
fn exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.is_f64(),
        Value::Array(values) => values.iter().all(exact),
        Value::Object(values) => values.values().all(exact),
        _ => true,
    }
}

fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let (one, other) = (one.as_f64().unwrap_or(0.0), other.as_f64().unwrap_or(0.0));
            (one - other).abs() <= one.abs() * 1e-14
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(name, one)| other.get(name).is_some_and(|other| same(one, other)))
        }
        (one, other) => one == other,
    }
}

/// Returns whether serde_json found a number too large. It reads doubles inexactly, so it also
/// refuses some spellings of the largest double.
fn is_inexact(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("number out of range")
}
