// SPDX-License-Identifier: MIT OR Apache-2.0
//! 64-bit FNV-1a hashes, which are the same in every build and process. A process can therefore use
//! the hash to identify a record to other processes. Clients can choose keys whose hashes collide.
//! A collision costs little: each change of one record makes the waiters of the other record try to
//! acquire their record once more. Where a collision would do more harm, the store uses
//! [`Identity::keyed_hash`](retryproof_core::Identity::keyed_hash).

use retryproof_core::Identity;

/// Returns the hash by which waiters find a record.
pub(crate) fn identity_hash(id: &Identity) -> u64 {
    pair_hash(id.scope().as_str().as_bytes(), id.key().expose().as_bytes())
}

/// Returns the hash of a pair. The hashed bytes begin with the length of the first part, so ("ab",
/// "c") differs from ("a", "bc").
pub(crate) fn pair_hash(first: &[u8], second: &[u8]) -> u64 {
    let bytes = first.len().to_le_bytes().into_iter();
    let bytes = bytes.chain(first.iter().copied()).chain(second.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These two keys have the same hash. The tests of locked rows use them too.
    #[test]
    fn a_client_can_choose_keys_that_collide() {
        let hash = |key| identity_hash(&Identity::of("postgres.tests", key).expect("valid"));
        assert_eq!(hash(r"I\WA6R]02Z:"), 0x0a95_5065_ba50_2dfb);
        assert_eq!(hash("lX`d]Ko58_3"), 0x0a95_5065_ba50_2dfb);
    }
}
