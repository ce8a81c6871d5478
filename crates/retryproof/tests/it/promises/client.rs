// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page on the client names each kind of its errors.

use retryproof::client::ErrorKind;

use super::rows;

#[test]
fn every_kind_of_call_error_is_on_the_page_and_no_other() {
    let kinds = [
        ErrorKind::GaveUp,
        ErrorKind::BodyNotReplayable,
        ErrorKind::InvalidKey,
        ErrorKind::KeyMissing,
        ErrorKind::Config,
        ErrorKind::NoRandom,
    ];
    let rows = rows(include_str!("../../../src/guide/client.md"));
    let named: Vec<_> = rows.iter().filter_map(|row| row[0].split('`').nth(1)).collect();
    assert_eq!(named, kinds.map(|kind| format!("{kind:?}")));
}
