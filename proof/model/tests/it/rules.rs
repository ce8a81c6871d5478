// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules and invariants that the model covers.

use std::collections::BTreeSet;

use model::{SIGHTS, WRONGS};

use crate::checker::ENDS;

/// The rules (SPEC.md) that the properties and sights cover.
const RULES: &str = "ACQ-1 ACQ-2 ACQ-3 ACQ-4 ACQ-5 ACQ-6 ACQ-7 ACQ-9 ACQ-10 ACQ-11 ACQ-12 CMP-1 \
     CMP-2 CMP-3 CMP-4 CMP-5 CMP-6 CMP-9 FP-1 FP-2 HTTP-6 ID-1 ID-2 RUN-1 RUN-2 RUN-3 RUN-4 \
     RUN-5 RUN-6 STO-4";

/// The invariants, among S1 to S19 and L1 to L10, that the properties and sights cover.
const INVARIANTS: &str = "L1 L2 L3 L5 L6 S1 S2 S3 S4 S5 S6 S7 S8 S10 S11 S12 S13 S16 S17 S18";

#[test]
fn the_properties_name_these_rules() {
    let names =
        WRONGS.iter().map(|wrong| wrong.name()).chain(SIGHTS.iter().map(|sight| sight.name()));
    let mut named = BTreeSet::new();
    for name in names.chain([ENDS]) {
        let (ids, words) = name.split_once(": ").unwrap();
        assert!(!words.is_empty());
        named.extend(ids.split(' '));
    }
    assert_eq!(named, RULES.split_whitespace().chain(INVARIANTS.split_whitespace()).collect());
}
