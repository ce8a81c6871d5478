// SPDX-License-Identifier: MIT OR Apache-2.0
//! 64-bit FNV-1a hashes, which are the same in every build and process. If two identities have the
//! same hash, their waiters wake each other without need, and their acquires share one limit on
//! connections, so an acquire of one may be answered busy while the row of the other is locked.

use retryproof_core::Identity;

/// The hash by which waiters and record limits find a record.
pub(crate) fn identity_hash(id: &Identity) -> u64 {
    pair_hash(id.scope().as_str().as_bytes(), id.key().expose().as_bytes())
}

/// The hash of a pair. The hashed bytes begin with the length of the first part, so that ("ab",
/// "c") differs from ("a", "bc").
pub(crate) fn pair_hash(first: &[u8], second: &[u8]) -> u64 {
    let bytes = first.len().to_le_bytes().into_iter();
    let bytes = bytes.chain(first.iter().copied()).chain(second.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
