// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Fingerprint`]: what a duplicate is compared by, in constant time (FP-1, FP-2).

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// Most bytes of a fingerprint: an algorithm byte and a 63-byte digest.
pub const MAX_FINGERPRINT_BYTES: usize = 64;

/// A digest of what the caller sent, kept beside the result so that another request under the same key is refused
/// instead of answered (FP-1). The first byte names the algorithm (FP-3); the rest is opaque here.
///
/// Equality takes the same time wherever two fingerprints differ.
#[derive(Clone, Copy)]
pub struct Fingerprint {
    len: u8,
    bytes: [u8; MAX_FINGERPRINT_BYTES],
}

impl Fingerprint {
    /// Takes 1 to 64 bytes, the first of them the algorithm.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for any other length.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut held = [0; MAX_FINGERPRINT_BYTES];
        match u8::try_from(bytes.len()) {
            Ok(len) if len > 0 && bytes.len() <= MAX_FINGERPRINT_BYTES => {
                held[..bytes.len()].copy_from_slice(bytes);
                Ok(Self { len, bytes: held })
            }
            _ => Err(Error::new(ErrorKind::Invalid, "a fingerprint takes 1 to 64 bytes")
                .with("bytes", bytes.len())),
        }
    }

    pub(crate) fn of_digest(algorithm: u8, digest: [u8; 32]) -> Self {
        let mut bytes = [0; MAX_FINGERPRINT_BYTES];
        bytes[0] = algorithm;
        bytes[1..33].copy_from_slice(&digest);
        Self { len: 33, bytes }
    }

    /// The bytes as given, for a store.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The algorithm byte (FP-3).
    #[must_use]
    pub fn algorithm(&self) -> u8 {
        self.bytes[0]
    }
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        let differ = self.bytes.iter().zip(&other.bytes).fold(0, |differ, (a, b)| differ | (a ^ b));
        std::hint::black_box(differ) == 0 && self.len == other.len
    }
}

impl Eq for Fingerprint {}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint(algorithm {}, {} bytes)", self.algorithm(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp_1_equality_is_by_all_bytes_and_length() {
        let fp = |b: &[u8]| Fingerprint::new(b).unwrap();
        assert_eq!(fp(&[1, 2, 3]), fp(&[1, 2, 3]));
        assert_ne!(fp(&[1, 2, 3]), fp(&[1, 2, 4]));
        assert_ne!(fp(&[1, 2]), fp(&[1, 2, 0]));
        assert!(Fingerprint::new(&[]).is_err());
        assert!(Fingerprint::new(&[0; 65]).is_err());
        assert_eq!(fp(&[7; 64]).algorithm(), 7);
    }
}
