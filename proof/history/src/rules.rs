// SPDX-License-Identifier: MIT OR Apache-2.0
//! The invariants, one function each, named by its id.

use crate::judge::Violation;
use crate::story::{Line, Run, Story};

pub mod calls;
pub mod fence;
pub mod lease;
pub mod live;
pub mod order;
pub mod result;
pub mod state;
pub mod telling;

/// Holds one story against one invariant.
pub type Rule = fn(&Run, &Story, &mut Vec<Violation>);

/// Every rule but S18, which is asked last ([`order::s18`]).
pub const RULES: [(&str, &str, Rule); 24] = [
    ("S1", "one valid holder by the store's clock", lease::s1),
    ("S2", "takeover only after expiry, and by one", lease::s2),
    ("S3", "fenced by owner", fence::s3),
    ("S4", "one accepted completion per epoch", result::s4),
    ("S5", "a result never changes within its ttl", result::s5),
    ("S6", "no record lost after an acknowledged completion", result::s6),
    ("S7", "exact replay", result::s7),
    ("S8", "no run after completion", result::s8),
    ("S9", "released is absent, and tokens grow", fence::s9),
    ("S10", "outcome truth", calls::s10),
    ("S11", "a fingerprint mismatch runs nothing and changes nothing", calls::s11),
    ("S12", "no bleed between identities", state::s12),
    ("S13", "never a failed or half state", state::s13),
    ("S14", "client clocks do not matter", state::s14),
    ("S15", "completion precedes the answer", calls::s15),
    ("S16", "error, panic, drop and hold never complete", calls::s16),
    ("S17", "extend never resurrects", lease::s17),
    ("S19", "a lost lease is told", telling::s19),
    ("L1", "a waiter ends", live::l1),
    ("L2", "a waiter is woken", live::l2),
    ("L3", "a dead holder is replaced", live::l3),
    ("L4", "a long action keeps its lease", live::l4),
    ("L5", "after the last fault every identity settles", live::l5),
    ("ACQ-10", "a resource that asks for the token refuses an older one", state::acq_10),
];

/// What S18 says.
pub const S18: (&str, &str) = ("S18", "ambiguity stays binary: a valid order exists");

/// A rule's place in the order of the plan.
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

/// Nanoseconds as a person reads them.
pub(crate) fn ms(ns: u64) -> String {
    format!("{}.{:02} ms", ns / 1_000_000, ns % 1_000_000 / 10_000)
}
