// SPDX-License-Identifier: MIT OR Apache-2.0
//! The binding of a sealed result: the data that is authenticated with the result, so that the
//! result can be opened only in the record for which it was sealed (SEAL-5).

use crate::identity::Identity;
use crate::payload::SEALED_HEADER;

/// Returns the binding of a record. `stored` is the identity under which the store keeps the
/// record, because a scan and an export have no other identity.
pub(super) fn of(stored: &Identity) -> Vec<u8> {
    let (scope, key) = (stored.scope().as_str().as_bytes(), stored.key().expose().as_bytes());
    let length = (scope.len() as u64).to_le_bytes();
    // Include the length of the scope, so that ("a", "bc") and ("ab", "c") give different results
    // (ID-2).
    [&b"retryproof sealed "[..], &SEALED_HEADER, &length, scope, key].concat()
}
