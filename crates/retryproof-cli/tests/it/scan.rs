// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists that end early, and where they continue.

use crate::support::{Place, code, err, out};

/// The position in a remark on stderr.
pub(crate) fn position(said: &str) -> Option<String> {
    let (_, position) = said.split_once("`--after=")?;
    position.split_once('`').map(|(position, _)| position.to_owned())
}

fn with_records(place: &Place, count: usize) -> Vec<String> {
    let keys: Vec<String> = (0..count).map(|n| format!("canary-{n}")).collect();
    for key in &keys {
        let run = place.retryproof(["run", "work", key, "--", "true"]).output().unwrap();
        assert_eq!(code(&run), 0, "{}", err(&run));
    }
    keys
}

/// Follows the printed positions through all records. If `is_exact`, no page has more records than
/// the limit, and no record comes twice.
pub(crate) fn positions_lead_through_all_records(place: &Place, is_exact: bool) {
    let keys = with_records(place, 5);
    let (mut listed, mut after, mut starts) = (Vec::new(), None, 0);
    loop {
        let ls = ["ls", "--scope", "work", "--limit", "2", "--show-keys", "--output", "jsonl"];
        let mut command = place.retryproof(ls);
        command.args(after.map(|after: String| format!("--after={after}")));
        let page = command.output().unwrap();
        assert_eq!(code(&page), 0, "{}", err(&page));
        assert!(!is_exact || out(&page).lines().count() <= 2, "{}", out(&page));
        for line in out(&page).lines() {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            listed.push(record["key"].as_str().unwrap().to_owned());
        }
        starts += 1;
        after = position(&err(&page));
        if after.is_none() {
            break;
        }
    }
    assert!(starts >= if is_exact { 3 } else { 1 }, "{starts}");
    listed.sort();
    if !is_exact {
        listed.dedup();
    }
    assert_eq!(listed, keys);
}

#[test]
fn ops_2_a_list_continues_at_a_printed_position() {
    positions_lead_through_all_records(&Place::sqlite(), true);
}

#[test]
fn id_4_a_position_is_printed_with_keys_only() {
    let place = Place::sqlite();
    with_records(&place, 2);
    let cut = place.retryproof(["ls", "--limit", "1"]).output().unwrap();
    let said = err(&cut);
    assert!(
        said.contains("ends at `--limit` 1; to learn where to continue, repeat the command"),
        "{said}"
    );
    assert_eq!(position(&said), None);
}

#[test]
fn ops_2_a_wrong_position_or_limit_is_a_usage_error() {
    let place = Place::sqlite();
    for wrong in [
        &["ls", "--after=%"][..],
        // The text can be parsed, but is not a position of this store.
        &["ls", "--after=MTc"],
        &["stuck", "--after=MTc"],
        &["ls", "--limit", "0"],
    ] {
        let output = place.retryproof(wrong).output().unwrap();
        assert_eq!(code(&output), 2, "{wrong:?}: {}", err(&output));
    }
}
