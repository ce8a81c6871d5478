// SPDX-License-Identifier: MIT OR Apache-2.0
//! FNV-1a, 64 bits: the same in every build and process. Who makes two identities collide wins a
//! needless wake-up.

/// The hash of a pair; the length of the first part keeps pairs apart.
pub(crate) fn hash(first: &[u8], second: &[u8]) -> u64 {
    let bytes = first.len().to_le_bytes().into_iter();
    let bytes = bytes.chain(first.iter().copied()).chain(second.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
