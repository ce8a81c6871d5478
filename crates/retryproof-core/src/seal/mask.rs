// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`FingerprintMask`]: hides the fingerprints of a store with sealed results (SEAL-6).
//!
//! A fingerprint is a digest without a key, so a reader of the store could test guessed requests
//! against it. The store therefore gets the fingerprint in a permuted form, which depends on the
//! identity secret and the identity. The permutation is a Feistel network of four rounds, with
//! SHA-256 as its round function. A digest would not be enough, because the HTTP filter reads parts
//! of a stored fingerprint: the algorithm, and the list of left-out members (FP-3, FP-5). Only the
//! engine reveals a hidden fingerprint.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint::{Fingerprint, HIDDEN, MAX_FINGERPRINT_BYTES};
use crate::identity::{Identity, IdentitySecret};

/// Hides and reveals the fingerprints of one identity.
#[derive(Clone)]
pub(crate) struct FingerprintMask(Arc<Zeroizing<[u8; 32]>>);

impl FingerprintMask {
    /// Creates the mask of one identity. `stored` is the identity under which the store keeps the
    /// record.
    pub(super) fn new(secret: &IdentitySecret, stored: &Identity) -> Self {
        let (scope, key) = (stored.scope().as_str().as_bytes(), stored.key().expose().as_bytes());
        let length = (scope.len() as u64).to_le_bytes();
        let key = secret.keyed(&[b"retryproof fingerprint 1", &length, scope, key]);
        Self(Arc::new(Zeroizing::new(key)))
    }

    /// Hides a fingerprint, which makes it one byte longer. A fingerprint that is already hidden,
    /// such as that of an imported tombstone, is returned unchanged.
    pub(super) fn hide(&self, fingerprint: &Fingerprint) -> Result<Fingerprint> {
        if fingerprint.is_hidden() {
            return Ok(*fingerprint);
        }
        let raw = fingerprint.as_bytes();
        if raw.len() == MAX_FINGERPRINT_BYTES {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the fingerprint is too long: a store with sealed results accepts fingerprints of \
                 at most 63 bytes",
            ));
        }
        let mut bytes = raw.to_vec();
        self.permute(&mut bytes, [0, 1, 2, 3]);
        bytes.insert(0, HIDDEN);
        Fingerprint::new(&bytes)
    }

    /// Reveals a hidden fingerprint. Any other fingerprint was stored before results were sealed,
    /// and is returned unchanged.
    pub(crate) fn reveal(&self, fingerprint: Fingerprint) -> Fingerprint {
        let Some((&HIDDEN, hidden)) = fingerprint.as_bytes().split_first() else {
            return fingerprint;
        };
        let mut bytes = hidden.to_vec();
        self.permute(&mut bytes, [3, 2, 1, 0]);
        Fingerprint::new(&bytes).unwrap_or(fingerprint)
    }

    /// Applies the rounds. In each round, one half is changed by a digest of the other half. A half
    /// has at most 32 bytes.
    fn permute(&self, bytes: &mut [u8], rounds: [u8; 4]) {
        let (left, right) = bytes.split_at_mut(bytes.len() / 2);
        for round in rounds {
            let (changed, by) = match round % 2 {
                0 => (&mut *left, &*right),
                _ => (&mut *right, &*left),
            };
            let mut hash = Sha256::new();
            hash.update(self.0.as_slice());
            hash.update([round]);
            hash.update(by);
            for (byte, pad) in changed.iter_mut().zip(hash.finalize()) {
                *byte ^= pad;
            }
        }
    }
}

/// Never prints the key.
impl fmt::Debug for FingerprintMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintMask(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(letter: &str, key: &str) -> FingerprintMask {
        let secret = IdentitySecret::new(letter.repeat(32)).unwrap();
        FingerprintMask::new(&secret, &Identity::of("pay", key).unwrap())
    }

    #[test]
    fn seal_6_a_hidden_fingerprint_is_revealed_by_its_own_mask() {
        let own = mask("a", "k");
        for length in 1..MAX_FINGERPRINT_BYTES {
            let raw: Vec<u8> = (1..=length).map(|at| u8::try_from(at).unwrap()).collect();
            let raw = Fingerprint::new(&raw).unwrap();
            let hidden = own.hide(&raw).unwrap();
            assert_eq!(hidden.as_bytes().len(), length + 1);
            assert_eq!(own.reveal(hidden), raw);
            assert_eq!(own.reveal(raw), raw, "an older fingerprint stays as it is");
        }
        let longest = Fingerprint::new(&[7; MAX_FINGERPRINT_BYTES]).unwrap();
        assert_eq!(own.hide(&longest).unwrap_err().kind(), ErrorKind::Invalid);
    }

    /// The hidden bytes depend on the secret, the identity and every byte of the fingerprint.
    #[test]
    fn seal_6_a_hidden_fingerprint_has_nothing_in_common_with_others() {
        let raw = Fingerprint::tagged(1, &[7; 32]);
        let mut other = [7; 32];
        other[31] = 8;
        let hidden = mask("a", "k").hide(&raw).unwrap();
        assert_eq!(hidden, mask("a", "k").hide(&raw).unwrap());
        for unlike in [
            mask("b", "k").hide(&raw).unwrap(),
            mask("a", "l").hide(&raw).unwrap(),
            mask("a", "k").hide(&Fingerprint::tagged(1, &other)).unwrap(),
            raw,
        ] {
            let pairs = hidden.as_bytes()[1..].iter().zip(&unlike.as_bytes()[1..]);
            let same = pairs.filter(|(one, other)| one == other).count();
            assert!(same < 8, "{same} of 32 bytes are the same");
        }
    }

    #[test]
    fn seal_6_one_changed_bit_changes_both_halves_of_a_hidden_fingerprint() {
        let own = mask("a", "k");
        let hidden = |bytes: &[u8]| {
            let hidden = own.hide(&Fingerprint::new(bytes).unwrap()).unwrap();
            hidden.as_bytes()[1..].to_vec()
        };
        let plain = [7; 32];
        let one = hidden(&plain);
        for at in [0, 15, 16, 31] {
            let mut changed = plain;
            changed[at] ^= 1;
            let other = hidden(&changed);
            for half in [0..16, 16..32] {
                let same = half.clone().filter(|&at| one[at] == other[at]).count();
                assert!(same < 8, "byte {at}: {same} bytes of {half:?} are the same");
            }
        }
    }
}
