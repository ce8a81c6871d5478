// SPDX-License-Identifier: MIT OR Apache-2.0
//! AES-256-GCM-SIV, for results and for data keys. A sealed text consists of a random nonce, the
//! ciphertext and the tag.

use std::fmt;

use aes_gcm_siv::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use retryproof_core::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

/// The length of a key in bytes.
pub(crate) const KEY: usize = 32;
const NONCE: usize = 12;

/// A plain key of 256 bits. It is overwritten when it is dropped, and never printed.
pub struct DataKey(Zeroizing<[u8; KEY]>);

impl DataKey {
    /// Creates a random key.
    ///
    /// # Errors
    /// `Unavailable` if the operating system provides no random bytes.
    pub fn random() -> Result<Self> {
        let mut key = Zeroizing::new([0; KEY]);
        getrandom::fill(key.as_mut_slice()).map_err(no_random_bytes)?;
        Ok(Self(key))
    }

    /// Creates a key from its bytes; `None` unless there are exactly 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; KEY] = bytes.try_into().ok()?;
        Some(Self(Zeroizing::new(*bytes)))
    }

    /// Returns the bytes of the key, for a [`KeyProvider`](crate::KeyProvider) to wrap.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// Seals a text, and authenticates `bound` with it. The sealed text opens only with the same
    /// `bound`.
    pub(crate) fn seal(&self, text: &[u8], bound: &[u8]) -> Result<Vec<u8>> {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(no_random_bytes)?;
        let payload = Payload { msg: text, aad: bound };
        let sealed = self
            .cipher()
            .encrypt(&Nonce::from(nonce), payload)
            .map_err(|_| Error::new(ErrorKind::TooLarge, "the result is too large to be sealed"))?;
        Ok([&nonce[..], &sealed].concat())
    }

    /// Opens a sealed text; `None` if the sealed text was changed, or if the key or `bound` is not
    /// the one with which the text was sealed.
    pub(crate) fn open(&self, sealed: &[u8], bound: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE>()?;
        self.cipher().decrypt(&Nonce::from(*nonce), Payload { msg: sealed, aad: bound }).ok()
    }

    fn cipher(&self) -> Aes256GcmSiv {
        Aes256GcmSiv::new((&*self.0).into())
    }
}

fn no_random_bytes(error: getrandom::Error) -> Error {
    Error::unavailable("the operating system provides no random bytes").because(error)
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    }

    /// A test case of RFC 8452, appendix C.2.
    #[test]
    fn seal_5_the_cipher_agrees_with_its_rfc() {
        let key = DataKey::from_bytes(&bytes(&format!("01{}", "00".repeat(31)))).unwrap();
        let sealed =
            bytes("030000000000000000000000c2ef328e5c71c83b843122130f7364b761e0b97427e3df28");
        assert_eq!(key.open(&sealed, b"").unwrap(), bytes("0100000000000000"));
    }

    #[test]
    fn seal_5_each_bit_of_a_sealed_text_counts() {
        let key = DataKey::random().unwrap();
        let sealed = key.seal(b"canary", b"here").unwrap();
        assert_eq!(sealed.len(), NONCE + 6 + 16);
        assert_eq!(key.open(&sealed, b"here").as_deref(), Some(&b"canary"[..]));
        for bit in 0..sealed.len() * 8 {
            let mut other = sealed.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(key.open(&other, b"here").is_none(), "bit {bit}");
        }
        for length in 0..sealed.len() {
            assert!(key.open(&sealed[..length], b"here").is_none());
        }
        assert!(key.open(&sealed, b"there").is_none());
        assert!(DataKey::random().unwrap().open(&sealed, b"here").is_none());
        assert_ne!(key.seal(b"canary", b"here").unwrap(), sealed, "a nonce is used once");
    }

    #[test]
    fn seal_3_a_key_is_never_printed() {
        let key = DataKey::from_bytes(&[0x41; KEY]).unwrap();
        assert_eq!(format!("{key:?}"), "DataKey(hidden)");
        assert!(DataKey::from_bytes(&[0; 31]).is_none());
    }
}
