// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdentitySecret`]: replaces keys by keyed digests, so that a store holds no keys (ID-5).

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::{Identity, Key, Scope};
use crate::error::{Error, ErrorKind, Result};

/// The minimum length of an identity secret, in bytes (ID-5).
pub const MIN_SECRET_BYTES: usize = 32;
/// The number of hex digits in a digest.
const DIGITS: usize = 64;
/// The block size of SHA-256, in bytes.
const BLOCK: usize = 64;

/// The secret of a store with hashed identities (ID-5).
///
/// Such a store gets HMAC-SHA-256 over scope and key, as 64 hex digits, in place of the key. Its
/// files and backups therefore contain no keys. All programs that use the store need the same
/// secret. The copy of the secret in this type is overwritten when the last clone is dropped.
///
/// # When to use
/// Use a secret if keys are personal data or credentials, such as e-mail addresses or session
/// tokens. Random keys, such as UUIDs, need no secret.
///
/// ```
/// use retryproof_core::{Identity, IdentitySecret, SharedStore};
/// use retryproof_memory::MemoryStore;
///
/// // 32 random bytes or more, for example from `openssl rand -hex 32`.
/// let secret = IdentitySecret::new("5d3c9a1f0b7e4c2d8a6f1e3b5c7d9e0f")?;
/// let store = MemoryStore::builder().identity_secret(secret).build();
/// let store = SharedStore::from(store);
///
/// // Logs print 16 digits of the digest. Only with the secret can a guessed key be tested against
/// // them.
/// let id = store.identify(Identity::of("payments", "ada@example.org")?);
/// assert_eq!(id.to_string(), "payments#48d26353da70c486");
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Clone)]
pub struct IdentitySecret(Arc<Secret>);

struct Secret {
    /// The secret as one block for HMAC, padded with zeros. A secret longer than a block is hashed
    /// first.
    block: Zeroizing<[u8; BLOCK]>,
    mark: i64,
}

/// The digest under which a store with hashed identities keeps the record of a key.
pub(super) struct KeyDigest {
    /// 64 lower-case hex digits.
    pub(super) digits: Arc<str>,
    /// The [mark](IdentitySecret::mark) of the secret.
    mark: i64,
}

impl IdentitySecret {
    /// Creates a secret from random bytes, or from a random text.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the secret has fewer than 32 bytes.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self> {
        let secret = secret.as_ref();
        if secret.len() < MIN_SECRET_BYTES {
            return Err(Error::new(
                ErrorKind::Config,
                "the identity secret is too short; expected 32 random bytes or more, for example \
                 from `openssl rand -hex 32`",
            )
            .with("bytes", secret.len()));
        }
        let block = block_of(secret);
        let hash = hmac(&block, &[b"retryproof identity secret 1"]);
        let mark = hash.first_chunk().map_or(0, |first| i64::from_le_bytes(*first));
        // The mark must be positive, because 0 is the mark of a store with plain identities.
        let mark = (mark & i64::MAX).max(1);
        Ok(Self(Arc::new(Secret { block, mark })))
    }

    /// Returns the number by which a store recognises its secret. A store records the mark when it
    /// is set up, and records 0 for plain identities. The number reveals nothing about the secret.
    #[must_use]
    pub fn mark(&self) -> i64 {
        self.0.mark
    }

    /// Checks that a store was set up for the program's `secret`. `recorded` is the mark that the
    /// store has recorded; `None` counts as the mark of plain identities. A store calls this
    /// function when it is opened, and again when it is migrated, so plain and hashed identities
    /// never mix in one store.
    ///
    /// # Errors
    /// [`ErrorKind::Config`]. The message says what to change.
    pub fn check(secret: Option<&Self>, recorded: Option<i64>) -> Result<()> {
        let message = match (recorded.unwrap_or(0), secret) {
            (0, None) => return Ok(()),
            (mark, Some(secret)) if mark == secret.mark() => return Ok(()),
            (0, Some(_)) => {
                "the store was set up without an identity secret, but this program has one; remove \
                 the program's `identity-secret`, or migrate a new store with that secret, under \
                 another table name or prefix"
            }
            (_, None) => {
                "the store was set up with an identity secret, but this program has no identity \
                 secret; set the program's `identity-secret` to the store's secret"
            }
            (_, Some(_)) => {
                "the store was set up with another identity secret than the one that this program \
                 has; set the program's `identity-secret` to the store's secret, or migrate a new \
                 store with the new secret, under another table name or prefix"
            }
        };
        Err(Error::new(ErrorKind::Config, message))
    }

    /// Returns the identity of the record that a store with this secret keeps under `digest`. A
    /// scan returns this identity too.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the text is not a digest.
    pub fn identity_of_digest(&self, scope: Scope, digest: &str) -> Result<Identity> {
        if !Self::is_digest(digest) {
            let message = "expected the digest of a key, which has 64 lower-case hex digits";
            return Err(Error::new(ErrorKind::Invalid, message).with("bytes", digest.len()));
        }
        Ok(Identity::new(scope, Key::new(digest)?).read_back(self))
    }

    /// Returns the schema `sql` with the mark of `secret` in place of the mark 0 in its row
    /// `('identity', 0)`. Tables that the returned SQL creates are then set up for hashed
    /// identities. Existing tables keep their mark.
    #[must_use]
    pub fn mark_schema(secret: Option<&Self>, sql: &str) -> String {
        let mark = secret.map_or(0, Self::mark);
        sql.replace("('identity', 0)", &format!("('identity', {mark})"))
    }

    /// Whether a stored key has the form of a digest. A plain key can have this form too.
    #[must_use]
    pub fn is_digest(key: &str) -> bool {
        key.len() == DIGITS && key.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }

    /// Computes HMAC-SHA-256 over `parts`, for a purpose other than the digest of a key. The first
    /// part is a text that names the purpose. The input of a key's digest begins with the length of
    /// a scope in 8 bytes. Any 8 letters, read as a length, exceed the longest scope, so the two
    /// inputs always differ.
    pub(crate) fn keyed(&self, parts: &[&[u8]]) -> [u8; 32] {
        hmac(&self.0.block, parts)
    }

    fn digest(&self, scope: &Scope, key: &str) -> KeyDigest {
        let scope = scope.as_str().as_bytes();
        // Include the length of the scope, so that ("a", "bc") and ("ab", "c") give different
        // results (ID-2).
        let length = (scope.len() as u64).to_le_bytes();
        let hash = hmac(&self.0.block, &[&length, scope, key.as_bytes()]);
        const HEX: [char; 16] =
            ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
        let mut digits = String::with_capacity(DIGITS);
        for byte in hash {
            digits.push(HEX[usize::from(byte >> 4)]);
            digits.push(HEX[usize::from(byte & 15)]);
        }
        KeyDigest { digits: digits.into(), mark: self.mark() }
    }
}

/// Never prints the secret.
impl fmt::Debug for IdentitySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdentitySecret(hidden)")
    }
}

impl Key {
    /// Removes the digest of a plain key. The digest depends on the scope, so it would be wrong if
    /// the key came from an identity with another scope.
    pub(super) fn without_digest(self) -> Self {
        match &self.digest {
            Some(digest) if digest.digits != self.text => Self { digest: None, ..self },
            _ => self,
        }
    }
}

impl Identity {
    /// Adds the digest of the key under `secret`, unless the identity already has it. The digest
    /// affects only how the identity is printed.
    pub(crate) fn hashed(self, secret: &IdentitySecret) -> Self {
        if self.key.digest.as_ref().is_some_and(|digest| digest.mark == secret.mark()) {
            return self;
        }
        let digest = Arc::new(secret.digest(&self.scope, &self.key.text));
        let Self { hash, scope, key } = self;
        Self { hash, scope, key: Key { digest: Some(digest), ..key } }
    }

    /// Returns the identity under which a store with this secret keeps the record, with the digest
    /// as its key. An identity that already has this form stays unchanged.
    pub(crate) fn stored(self, secret: &IdentitySecret) -> Self {
        let Self { hash, scope, key } = self.hashed(secret);
        match key.digest {
            Some(digest) if digest.digits != key.text => {
                let text = Arc::clone(&digest.digits);
                Self::new(scope, Key { text, digest: Some(digest) })
            }
            digest => Self { hash, scope, key: Key { digest, ..key } },
        }
    }

    /// Marks an identity that was read from a store with this secret, so that its digest is not
    /// hashed again. A key that is not a digest gets no mark.
    pub(crate) fn read_back(self, secret: &IdentitySecret) -> Self {
        let Self { hash, scope, key } = self;
        let text = key.text;
        let digest = IdentitySecret::is_digest(&text)
            .then(|| Arc::new(KeyDigest { digits: Arc::clone(&text), mark: secret.mark() }));
        Self { hash, scope, key: Key { text, digest } }
    }
}

/// Pads the secret to one block. As HMAC requires, a secret longer than a block is hashed first
/// (RFC 2104).
fn block_of(secret: &[u8]) -> Zeroizing<[u8; BLOCK]> {
    let mut block = Zeroizing::new([0; BLOCK]);
    if let Some(start) = block.get_mut(..secret.len()) {
        start.copy_from_slice(secret);
    } else {
        let hash: [u8; 32] = Sha256::digest(secret).into();
        block[..32].copy_from_slice(&hash);
    }
    block
}

/// Computes HMAC-SHA-256 over the joined `parts`. It is written out here because the crate `hmac`
/// would add three more crates.
fn hmac(block: &[u8; BLOCK], parts: &[&[u8]]) -> [u8; 32] {
    let padded = |pad: u8| Zeroizing::new(block.map(|byte| byte ^ pad));
    let mut inner = Sha256::new();
    inner.update(*padded(0x36));
    parts.iter().for_each(|part| inner.update(part));
    let mut outer = Sha256::new();
    outer.update(*padded(0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> IdentitySecret {
        IdentitySecret::new(text).expect("long enough")
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The test cases 1, 2, 4 and 6 of RFC 4231.
    #[test]
    fn id_5_the_hmac_agrees_with_its_rfc() {
        let counted: Vec<u8> = (1..=25).collect();
        for (key, text, expected) in [
            (
                &[0x0b; 20][..],
                &b"Hi There"[..],
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &counted,
                &[0xcd; 50],
                "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b",
            ),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ] {
            let (start, end) = text.split_at(3);
            assert_eq!(hex(&hmac(&block_of(key), &[start, end])), expected);
        }
    }

    #[test]
    fn id_5_a_short_secret_is_refused_and_no_secret_is_printed() {
        let error = IdentitySecret::new("canary-".repeat(4)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(!error.to_string().contains("canary"), "{error}");
        let long = secret(&"canary-".repeat(5));
        assert_eq!(format!("{long:?}"), "IdentitySecret(hidden)");
    }

    #[test]
    fn id_5_the_digest_depends_on_scope_key_and_secret() {
        let (one, two) = (secret(&"a".repeat(32)), secret(&"b".repeat(32)));
        assert_ne!(one.mark(), two.mark());
        let stored = |scope: &'static str, key: &str, by: &IdentitySecret| {
            let id = Identity::of(scope, key).unwrap().stored(by);
            assert_eq!(id.scope().as_str(), scope, "the scope stays readable");
            id.key().expose().to_owned()
        };
        let digest = stored("a", "bc", &one);
        assert_eq!(digest.len(), DIGITS);
        assert_eq!(digest, stored("a", "bc", &one));
        for other in [stored("ab", "c", &one), stored("a", "bd", &one), stored("a", "bc", &two)] {
            assert_ne!(digest, other);
        }
        // A client cannot reach a record by sending the record's digest as a key.
        assert_ne!(stored("a", &digest, &one), digest);
    }

    #[test]
    fn id_5_hashing_again_changes_nothing_and_another_secret_hashes_anew() {
        let (one, two) = (secret(&"a".repeat(32)), secret(&"b".repeat(32)));
        let plain = Identity::of("a", "canary").unwrap();
        let hashed = plain.clone().hashed(&one);
        let stored = hashed.clone().stored(&one);
        assert_eq!(hashed, plain);
        assert_eq!(hashed.key().expose(), "canary");
        assert_eq!(stored, plain.clone().stored(&one));
        assert_eq!(stored.clone().stored(&one), stored);
        let shown = format!("a#{}", &stored.key().expose()[..16]);
        assert_eq!((hashed.to_string(), stored.to_string()), (shown.clone(), shown.clone()));
        assert_ne!(plain.to_string(), shown);
        assert_eq!(hashed.clone().stored(&two), plain.clone().stored(&two));
        // An identity that a scan has returned is printed with the same digits as before, and is not
        // hashed again.
        let read = Identity::of("a", stored.key().expose()).unwrap().read_back(&one);
        assert_eq!((read.to_string(), read.stored(&one)), (shown, stored));
        assert_eq!(plain.clone().read_back(&one).stored(&one), plain.clone().stored(&one));
        let scope = || plain.scope().clone();
        let named = one.identity_of_digest(scope(), &plain.clone().stored(&one).key().text);
        assert_eq!(named.unwrap().stored(&one), plain.clone().stored(&one));
        for bad in ["canary".to_owned(), "A".repeat(64), "0".repeat(63)] {
            let error = one.identity_of_digest(scope(), &bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }

    /// The digest of a key in one scope does not reach a record in another scope.
    #[test]
    fn id_5_a_key_that_moves_to_another_scope_gets_another_digest() {
        let one = secret(&"a".repeat(32));
        let there = Identity::of("b", "k").unwrap().stored(&one);
        let here = Identity::of("a", "k").unwrap().hashed(&one);
        let moved = Identity::new(there.scope().clone(), here.key().clone());
        assert_eq!(moved.stored(&one), there);
    }

    #[test]
    fn id_5_a_mismatch_says_which_side_to_change() {
        let (one, two) = (secret(&"a".repeat(32)), secret(&"b".repeat(32)));
        assert!(IdentitySecret::check(None, None).is_ok());
        assert!(IdentitySecret::check(None, Some(0)).is_ok());
        assert!(IdentitySecret::check(Some(&one), Some(one.mark())).is_ok());
        for (secret, recorded, text) in [
            (Some(&one), None, "set up without an identity secret"),
            (Some(&one), Some(0), "remove the program's `identity-secret`"),
            (None, Some(one.mark()), "this program has no identity secret"),
            (
                Some(&two),
                Some(one.mark()),
                "another identity secret than the one that this program has",
            ),
        ] {
            let error = IdentitySecret::check(secret, recorded).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
