// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Scope`], [`Key`] and [`Identity`] are validated once and compared byte for byte. Keys are
//! printed masked (ID-1 to ID-5).

use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher, RandomState};
use std::sync::{Arc, OnceLock};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use sha2::{Digest, Sha256};

use self::secret::KeyDigest;
use crate::error::{Error, ErrorKind, Result};

mod secret;

pub use secret::{IdentitySecret, MIN_SECRET_BYTES};

/// The maximum length of a scope, in bytes (ID-3).
pub const MAX_SCOPE_BYTES: usize = 255;
/// The maximum length of a key, in bytes (ID-3).
pub const MAX_KEY_BYTES: usize = 512;

/// Names the kind of work that a key belongs to (ID-1), such as `"payments"` or `"orders.created"`.
///
/// A scope is part of the program, not of its data. Functions therefore take a `&'static str` or an
/// explicitly built `Scope`. Code that passes a run-time key as the scope does not compile (ID-3).
#[derive(Clone)]
pub struct Scope(Text);

#[derive(Clone)]
enum Text {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Scope {
    /// Builds a scope from a run-time string.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the scope is empty, longer than 255 bytes or blank, or has a
    /// control character (ID-3).
    pub fn new(scope: impl Into<Arc<str>>) -> Result<Self> {
        let scope = scope.into();
        check("scope", &scope, MAX_SCOPE_BYTES)?;
        Ok(Self(Text::Shared(scope)))
    }

    /// Returns the scope as given.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Static(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl PartialEq for Scope {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Scope {}

impl std::hash::Hash for Scope {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for &'static str {}
    impl Sealed for super::Scope {}
    impl Sealed for &super::Scope {}
}

/// Types that can be used as a scope: `&'static str` and [`Scope`] (ID-3).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as a scope, because a scope is part of the code and not of \
               the data",
    label = "expected a `&'static str` or a `Scope`",
    note = "pass the scope first and the key second; if the scope is known only at run time, build \
            the scope with `Scope::new(..)?`"
)]
pub trait IntoScope: sealed::Sealed {
    /// Validates the value and converts it to a [`Scope`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], as in [`Scope::new`].
    fn into_scope(self) -> Result<Scope>;
}

impl IntoScope for &'static str {
    fn into_scope(self) -> Result<Scope> {
        check("scope", self, MAX_SCOPE_BYTES)?;
        Ok(Scope(Text::Static(self)))
    }
}

impl IntoScope for Scope {
    fn into_scope(self) -> Result<Scope> {
        Ok(self)
    }
}

impl IntoScope for &Scope {
    fn into_scope(self) -> Result<Scope> {
        Ok(self.clone())
    }
}

/// Identifies one unit of work within its scope (ID-1). A key is printed masked, as the first 16
/// hex digits of its SHA-256 (ID-4), or of its digest in a store with hashed identities (ID-5).
#[derive(Clone)]
pub struct Key {
    text: Arc<str>,
    /// The digest under which a store with hashed identities keeps the record. In an identity that
    /// such a store keeps or returns, `text` is the digest too.
    digest: Option<Arc<KeyDigest>>,
}

impl Key {
    /// Validates a key.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the key is empty, longer than 512 bytes or blank, or has a control
    /// character (ID-3).
    pub fn new(key: impl AsRef<str>) -> Result<Self> {
        let key = key.as_ref();
        check("key", key, MAX_KEY_BYTES).map_err(Error::about_key)?;
        Ok(Self { text: Arc::from(key), digest: None })
    }

    /// Returns the raw key, for a store. Never log it: it may be personal data or a secret (ID-4).
    #[must_use]
    #[inline]
    pub fn expose(&self) -> &str {
        &self.text
    }
}

/// Compares only the text, because the digest affects only what is printed.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.digest.as_ref().and_then(|digest| digest.digits.get(..16)) {
            Some(digits) => write!(f, "#{digits}"),
            None => write!(f, "#{:016x}", self.plain_digest()),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Key {
    fn plain_digest(&self) -> u64 {
        let hash = Sha256::digest(self.text.as_bytes());
        hash[..8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }
}

/// A record's identity: scope and key together, compared byte for byte (ID-1, ID-2). Cheap to
/// clone.
///
/// ```
/// use retryproof_core::Identity;
///
/// let id = Identity::of("payments", "order-17")?;
/// assert_ne!(id, Identity::of("refunds", "order-17")?);
/// // It prints masked: keys may be credentials or personal data.
/// assert_eq!(id.to_string(), "payments#72a90ea3da8b5dd0");
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Identity {
    /// The hash is computed once, because every call to an in-memory store and every wait needs it.
    /// Identities with different hashes differ, but identities with equal hashes may differ too.
    hash: u64,
    scope: Scope,
    key: Key,
}

impl Identity {
    /// Creates an identity from a validated scope and a validated key.
    #[must_use]
    pub fn new(scope: Scope, key: Key) -> Self {
        Self { hash: hash_of(&scope, &key), scope, key: key.without_digest() }
    }

    /// Validates a scope and a key, and creates their identity.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], as in [`Scope::new`] and [`Key::new`].
    pub fn of(scope: impl IntoScope, key: impl AsRef<str>) -> Result<Self> {
        Ok(Self::new(scope.into_scope()?, Key::new(key)?))
    }

    /// Returns the scope.
    #[must_use]
    #[inline]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns the key.
    #[must_use]
    #[inline]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns a hash of scope and key, for stores that keep records in memory. The hash is seeded
    /// at random in each process.
    ///
    /// The hash is computed once, so a lookup does not hash the strings again. Because of the seed,
    /// clients cannot choose keys that collide. The hash differs in each process, so never store it
    /// or send it anywhere.
    #[must_use]
    #[inline]
    pub fn keyed_hash(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.scope == other.scope && self.key == other.key
    }
}

impl Eq for Identity {}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Hashes a scope and a key. The seed is random in each process. Without a random seed, clients
/// could choose keys that all fall into one bucket of a hash table.
fn hash_of(scope: &Scope, key: &Key) -> u64 {
    static SEED: OnceLock<(u64, SharedSeed)> = OnceLock::new();
    let (seed, shared) = SEED.get_or_init(|| {
        let random = RandomState::new();
        (random.hash_one("seed"), SharedSeed::from_u64(random.hash_one("shared seed")))
    });
    let mut hasher = FoldHasher::with_seed(*seed, shared);
    // The hash does not show where the scope ends. ("ab", "c") and ("a", "bc") can therefore have
    // the same hash, so `eq` also compares the strings (ID-2).
    hasher.write(scope.as_str().as_bytes());
    hasher.write(key.expose().as_bytes());
    hasher.finish()
}

/// Prints `scope#` and 16 hex digits (ID-4).
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.scope, self.key)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Checks a scope or a key against ID-3. The error contains the text's length, but never the text.
fn check(part: &'static str, text: &str, max_bytes: usize) -> Result<()> {
    // Most scopes and keys are visible ASCII, so try a fast check for ASCII first. The loop has no
    // early exit, so that the compiler can vectorise it.
    let visible = text.bytes().fold(true, |visible, byte| visible & byte.is_ascii_graphic());
    if visible && !text.is_empty() && text.len() <= max_bytes {
        Ok(())
    } else {
        check_unicode(part, text, max_bytes)
    }
}

fn check_unicode(part: &'static str, text: &str, max_bytes: usize) -> Result<()> {
    let problem = if text.is_empty() {
        "is empty"
    } else if text.len() > max_bytes {
        "is too long"
    } else if is_blank(text) {
        "is blank"
    } else if text.chars().any(char::is_control) {
        "contains a control character"
    } else {
        return Ok(());
    };
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "the {part} {problem}; expected 1 to {max_bytes} bytes of non-blank text without \
             control characters"
        ),
    )
    .with("bytes", text.len()))
}

fn is_blank(text: &str) -> bool {
    text.chars().all(char::is_whitespace)
}

// This `impl` is here and not in `error.rs`, so that `error.rs` does not depend on the type
// `Identity`.
impl Error {
    /// Adds the masked identity, unless the error already names one.
    #[must_use]
    #[cold]
    pub fn for_identity(self, identity: &Identity) -> Self {
        self.about(|| identity.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_1_scopes_count_even_if_the_hash_is_the_same() {
        let [one, other] = ["a", "b"].map(|scope| Identity::of(scope, "key").unwrap());
        assert_ne!(one.clone(), Identity { hash: one.hash, ..other });
    }

    #[test]
    fn id_3_bounds_are_exact() {
        assert!(Key::new("k".repeat(512)).is_ok());
        assert!(Key::new("k".repeat(513)).is_err());
        assert!(Scope::new("s".repeat(255)).is_ok());
        assert!(Scope::new("s".repeat(256)).is_err());
        for bad in ["", " ", "\u{3000}", "a\nb", "a\u{7f}", "a\u{85}"] {
            assert_eq!(Key::new(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
            assert!(Scope::new(bad).is_err(), "{bad:?}");
        }
        assert!(Key::new("ключ ☃ with space").is_ok());
    }

    #[test]
    fn id_2_identities_compare_byte_for_byte() {
        let id = |s: &str, k: &str| Identity::new(Scope::new(s).unwrap(), Key::new(k).unwrap());
        assert_ne!(id("a:b", "c"), id("a", "b:c"));
        assert_ne!(id("a", "K"), id("a", "k"));
        assert_ne!(id("a", "k "), id("a", "k"));
        assert_ne!(id("a", "\u{e9}"), id("a", "e\u{301}"));
        assert_eq!(id("a", "k"), Identity::of("a", "k").unwrap());
        let other = id("a", "bc");
        assert_ne!(
            Identity { hash: other.hash, ..id("ab", "c") },
            other,
            "an equal hash does not make two identities equal"
        );
    }

    #[test]
    fn id_4_identity_prints_masked() {
        let id = Identity::of("payments", "canary-4711").unwrap();
        let hash: String =
            Sha256::digest(b"canary-4711").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(id.to_string(), format!("payments#{}", &hash[..16]));
        assert_eq!(format!("{id:?}"), id.to_string());
        let error = Error::unavailable("no answer").for_identity(&id);
        assert!(!format!("{error} {error:?} {:?}", id.key()).contains("canary"));
    }
}
