// SPDX-License-Identifier: MIT OR Apache-2.0
//! The invariants: one function for each, named by its id.

use crate::judge::Violation;
use crate::story::{Line, Run, Story};

pub mod calls;
pub mod fence;
pub mod force;
pub mod lease;
pub mod live;
pub mod order;
pub mod pace;
pub mod result;
pub mod state;
pub mod telling;

/// Checks one story against one invariant.
pub type Rule = fn(&Run, &Story, &mut Vec<Violation>);

/// Every rule except S18, which is checked last ([`order::s18`]).
pub const RULES: [(&str, &str, Rule); 26] = [
    ("S1", "only one valid holder, by the store's clock", lease::s1),
    ("S2", "takeover only after expiry, and by only one owner", lease::s2),
    ("S3", "fenced by owner", fence::s3),
    ("S4", "one accepted completion per epoch", result::s4),
    ("S5", "a result never changes within its ttl", result::s5),
    ("S6", "no record lost after an acknowledged completion", result::s6),
    ("S7", "exact replay", result::s7),
    ("S8", "no run after completion", result::s8),
    ("S9", "a released key is absent, and tokens grow", fence::s9),
    ("S10", "each outcome is true", calls::s10),
    ("S11", "a fingerprint mismatch runs nothing and changes nothing", calls::s11),
    ("S12", "no call gets a value of another identity", state::s12),
    ("S13", "no record is in a failed or partial state", state::s13),
    ("S14", "client clocks do not matter", state::s14),
    ("S15", "the completion precedes the answer", calls::s15),
    ("S16", "an error, panic, drop or hold never completes", calls::s16),
    ("S17", "an extension never revives a lease", lease::s17),
    ("S19", "the loss of a lease is reported", telling::s19),
    ("L1", "a waiter ends", live::l1),
    ("L2", "a waiter is woken", live::l2),
    ("L3", "a dead holder is replaced", live::l3),
    ("L4", "a long action keeps its lease", live::l4),
    ("L5", "after the last fault every identity settles", live::l5),
    ("ACQ-10", "a resource that checks tokens refuses an older one", state::acq_10),
    ("OPS-3", "an operator changes only the record that it saw", force::ops_3),
    ("OPS-4", "the effect of an operator's call lasts", force::ops_4),
];

/// The meaning of S18.
pub const S18: (&str, &str) = ("S18", "ambiguity stays binary: a valid order exists");

/// Returns the position of a rule in the report.
#[must_use]
pub fn place(rule: &str) -> usize {
    let number =
        |id: &str| id.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(99);
    if let Some(rest) = rule.strip_prefix('S') { number(rest) } else { 100 + number(rule) }
}

pub(crate) fn wrong(
    rule: &'static str,
    at: u64,
    text: impl Into<String>,
    lines: impl IntoIterator<Item = Option<Line>>,
) -> Violation {
    Violation {
        rule,
        story: None,
        text: text.into(),
        lines: lines.into_iter().flatten().collect(),
        at,
        documented: false,
    }
}

/// Formats nanoseconds for a reader.
pub(crate) fn ms(ns: u64) -> String {
    format!("{}.{:02} ms", ns / 1_000_000, ns % 1_000_000 / 10_000)
}
